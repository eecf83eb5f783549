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
    """The file changed since the version that the writer read; `etag` is the current one."""

    code = "precondition_failed"

    def __init__(self, message: str, *, etag: str | None) -> None:
        """Take the etag of the file as it is now (None: it does not exist)."""
        self.etag = etag
        super().__init__(message)


class TooLargeError(PersistenceError):
    """The content is over its documented size limit."""

    code = "too_large"


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


class WorkspaceUnusableError(PersistenceError):
    """The workspace folder is absent, unreadable or not writable; the server can't start on it."""

    code = "degraded"
