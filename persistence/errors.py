"""What can go wrong in the archive, by what the caller can do about it. Each leaf carries the stable code of the API."""

from typing import ClassVar


class PersistenceError(Exception):
    """Root of the archive's errors; `code` is the stable code of the HTTP contract."""

    code: ClassVar[str] = "store_error"


class ChannelInvalidError(PersistenceError):
    """The text from outside is no channel id."""

    code = "channel_invalid"


class BodyInvalidError(PersistenceError):
    """A value from outside (a ts, a thread ts, a path, a settings key) is malformed."""

    code = "body_invalid"


class SettingsInvalidError(BodyInvalidError):
    """Some settings values were refused; `problems` names every one."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        """Take (key, reason) pairs."""
        self.problems = problems
        super().__init__("; ".join(f"{key}: {reason}" for key, reason in problems))


class NotFoundError(PersistenceError):
    """The named thing is not on the volume."""

    code = "not_found"


class UnsafeObjectError(PersistenceError):
    """A link, FIFO, device or socket stands where a regular file or real folder is expected."""

    code = "unsafe_object"


class NotUtf8Error(PersistenceError):
    """The file holds bytes that are not UTF-8, so it is never rewritten."""

    code = "not_utf8"


class MessageConflictError(PersistenceError):
    """The same (channel, ts) or idempotency key came with another text."""

    code = "message_conflict"


class TsFutureError(PersistenceError):
    """A client's ts lies too far in the future."""

    code = "ts_future"


class PreconditionFailedError(PersistenceError):
    """The file changed since the version that the writer read; `etag` is the current one.

    `diff` is the unified diff from the current text to the writer's, "" where there is none to give.
    """

    code = "precondition_failed"

    def __init__(self, message: str, *, etag: str | None, diff: str = "") -> None:
        """Take the etag of the file as it is now (None: it does not exist)."""
        self.etag = etag
        self.diff = diff
        super().__init__(message)


class PreconditionRequiredError(PersistenceError):
    """Replacing or creating a whole file needs the version that the writer read, or that it read none."""

    code = "precondition_required"


class ForbiddenError(PersistenceError):
    """The path is one that this way of access may not touch."""

    code = "forbidden"


class SecretDetectedError(PersistenceError):
    """The text holds what looks like a secret; the message says which kind and where, never the value."""

    code = "secret_detected"

    def __init__(self, message: str, *, kind: str = "", offset: int | None = None) -> None:
        """Take the kind of the finding and its offset in the text, in code points."""
        self.kind = kind
        self.offset = offset
        super().__init__(message)


class TooLargeError(PersistenceError):
    """The content is over its documented size limit."""

    code = "too_large"


class TopicBlankError(PersistenceError):
    """The name of a topic, or the text to look one up by, is empty."""

    code = "topic_blank"


class TopicStructuralError(PersistenceError):
    """The name of a topic holds a character that would break its index line, or could hide in it."""

    code = "topic_structural"


class TopicNoSlugError(PersistenceError):
    """The name of a topic holds no letter and no digit to make a file name of."""

    code = "topic_no_slug"


class TopicReservedError(PersistenceError):
    """The name of a topic would make a file that has another meaning."""

    code = "topic_reserved"


class TopicRetiredError(PersistenceError):
    """The name belongs to a topic that is no longer kept."""

    code = "topic_retired"


class AmbiguousError(PersistenceError):
    """The text fits several things; `candidates` are their (name, file), and a file name always says which one is meant."""

    code = "ambiguous"

    def __init__(self, message: str, *, candidates: tuple[tuple[str, str], ...]) -> None:
        """Take the (name, file) of each thing that fits."""
        self.candidates = candidates
        super().__init__(message)


class PinnedError(PersistenceError):
    """A pinned topic is never removed."""

    code = "pinned"


class RollbackFailedError(PersistenceError):
    """A change of several files failed half-way and could not be taken back; `names` are the files to look at."""

    code = "rollback_failed"

    def __init__(self, message: str, *, names: tuple[str, ...]) -> None:
        """Take the workspace-relative names of the files that may hold the unfinished change."""
        self.names = names
        super().__init__(message)


class RoleInvalidError(PersistenceError):
    """The text from outside can be no role of a team."""

    code = "role_invalid"


class RoleUnknownError(PersistenceError):
    """The role is not one of the configured ones."""

    code = "role_unknown"


class RunEntryQuotaError(PersistenceError):
    """A role wrote as many log entries in this run as one run may."""

    code = "run_entry_quota"


class IndexFullError(PersistenceError):
    """The team's index would hold more lines than it may; the file is unchanged."""

    code = "index_full"


class DecisionImmutableError(PersistenceError):
    """A decision is never changed or removed: a new one that supersedes it is made."""

    code = "decision_immutable"


class AgentsActiveError(PersistenceError):
    """An agent is at work in a run, so the team's memory is not compacted now; `attempts` are (run, task) of each."""

    code = "agents_active"

    def __init__(self, message: str, *, attempts: tuple[tuple[str, str], ...]) -> None:
        """Take (run id, task) of each attempt that was started and not finished."""
        self.attempts = attempts
        super().__init__(message)


class RunConflictError(PersistenceError):
    """Somebody else appended to the run first; `seq` and `head` are those of its last event now (0 and None: it has none)."""

    code = "conflict"

    def __init__(self, message: str, *, seq: int, head: str | None) -> None:
        """Take the number of the run's last event and the hash of its line."""
        self.seq = seq
        self.head = head
        super().__init__(message)


class EventRefusedError(PersistenceError):
    """The event does not follow from what the run holds; reading the run tells what does."""

    code = "event_refused"


class RunCorruptError(PersistenceError):
    """A line inside the run's file is bad, so the run is only read; a new run goes on."""

    code = "run_corrupt"


class StoreBusyError(PersistenceError):
    """Another writer holds the lock; nothing was written; trying again later is right."""

    code = "store_busy"


class StorageFullError(PersistenceError):
    """The volume has no space left; nothing was acknowledged."""

    code = "storage_full"


class StoreFaultError(PersistenceError):
    """The disk or network file system failed; nothing was acknowledged."""

    code = "store_error"


class SettingsBrokenError(PersistenceError):
    """settings.json can't be parsed; it is kept as it is and no write happens until it is repaired."""

    code = "degraded"


class ContextUnsupportedError(PersistenceError):
    """The context file is of a newer version than this program understands; it is left untouched."""

    code = "context_unsupported"


class FlushMissingError(PersistenceError):
    """A span of a context may not be compacted: its flush into memory is neither recorded nor waived. A fault of the caller."""

    code = "flush_missing"


class WorkspaceUnusableError(PersistenceError):
    """The workspace folder is absent, unreadable or not writable; the server can't start on it."""

    code = "degraded"
