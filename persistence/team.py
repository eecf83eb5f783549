"""Team memory: the tree that several agents with roles share in one scope (formats: team.md). Its runs are `runs`'."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Final

from persistence.audit import Action, AuditLine, append_audit, now_iso, one_line
from persistence.errors import (
    AgentsActiveError,
    DecisionImmutableError,
    ForbiddenError,
    IndexFullError,
)
from persistence.files import (
    Held,
    TextFile,
    create_bytes,
    etag_of,
    locked,
    open_regular,
    opened_folder,
    read_bytes,
    read_text,
)
from persistence.lines import Tail, append_lines
from persistence.memory import MemoryLayer
from persistence.runs import Runs, parse_run_id, utc_now
from persistence.teams.compaction import Compaction, compact_index, compact_log
from persistence.teams.decisions import (
    Decision,
    clean_body,
    clean_title,
    list_decisions,
    parse_day,
    parse_slug,
    read_decision,
    record_decision,
    slug_of,
    split_marked,
)
from persistence.teams.log import (
    DEFAULT_ROLES,
    INDEX_LIMIT,
    ORCHESTRATOR,
    Entry,
    count_lines,
    head_of_log,
    is_role,
    parse_entries,
    parse_role,
    refuse_private,
    render_entry,
)
from persistence.teams.quota import claim_entry, refuse_over_quota
from persistence.teams.status import LATEST_DECISIONS, TeamStatus, summarise
from persistence.versions import (
    MAX_KEPT_BYTES,
    Author,
    changed_meanwhile,
    encode_text,
    recorded_change,
    replace_with_version,
)
from persistence.workspace import ChannelId, Workspace, resolve_memory_dir

_INDEX_HEAD: Final = b"# Team memory\n"
_BRIEFED_ENTRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Appended:
    """An entry of a log as written. `replayed`: it was there already from the same run. `decision` was made of the note."""

    path: str
    text: str
    replayed: bool = False
    decision: Decision | None = None


class TeamMemory:
    """The tree of one scope (`channel` None: the whole workspace) with its `runs`. One object may be used by many threads."""

    def __init__(
        self,
        workspace: Workspace,
        channel: ChannelId | None,
        *,
        roles: Sequence[str] = DEFAULT_ROLES,
        memory_dir: str | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Take the scope, the configured roles, where the memory is (from the scope's folder on) and the clock.

        Raises BodyInvalidError for a `memory_dir` that can't be used.
        """
        self._workspace = workspace
        self._channel = channel
        self._roles = tuple(roles)
        self._folder = resolve_memory_dir(workspace, channel, memory_dir)
        self._decisions = f"{self._folder}/decisions"
        self._index = f"{self._folder}/INDEX.md"
        self._now = now
        self.runs = Runs(workspace, channel, roles=self._roles, now=now)

    def exists(self) -> bool:
        """Whether the team's memory was ever made here."""
        return self._stands(self._index)

    def init(self, *, author: Author) -> list[str]:
        """Make what is missing of the tree, and return the names of the files made; what is there is never changed."""
        with self._locked():
            runs = self._workspace.team_runs(self._channel)
            for folder in (*(f"{self._folder}/{each}" for each in ("log", "decisions", "archive")), runs):
                with opened_folder(self._workspace.root, folder, create=True):
                    pass
            wanted = {self._index: _INDEX_HEAD} | {self._log(role): head_of_log(role) for role in self._roles}
            return [name for name, data in wanted.items() if self._create(name, data, author)]

    def _create(self, name: str, data: bytes, author: Author) -> bool:
        if self._stands(name):
            return False
        with recorded_change(self._workspace, name, None, data, author=author):
            return create_bytes(self._workspace.root, name, data)

    def status(self) -> TeamStatus:
        """What there is, all zero without a tree. Makes and touches no file. Raises UnsafeObjectError, StoreFaultError."""
        return summarise(
            read_bytes(self._workspace.root, self._index) or b"",
            {role: self._entries(role) for role in self._all_roles()},
            decisions=self.decisions(limit=LATEST_DECISIONS),
            active_runs=self.runs.unfinished(),
            last_run=next(iter(self.runs.ids()), None),
        )

    def briefing(self, role: str) -> list[MemoryLayer]:
        """What an agent reads when a run starts: the index, and the tail of its own log. Data for a fence, never instructions."""
        role = parse_role(role, self._roles)
        layers = [
            self._layer(self._index, read_text(self._workspace.root, self._index)),
            self._layer(self._log(role), read_text(self._workspace.root, self._log(role), limit=MAX_KEPT_BYTES), tail=True),
        ]
        return [layer for layer in layers if layer is not None and layer.text.strip()]

    def _layer(self, path: str, file: TextFile | None, *, tail: bool = False) -> MemoryLayer | None:
        if file is None:
            return None
        text = file.text.replace("\r\n", "\n")
        if tail:
            lines = text.split("\n")
            numbers = [entry.line for entry in parse_entries(text.encode("utf-8"))[-_BRIEFED_ENTRIES:]]
            text = "\n".join(lines[number - 1] for number in numbers)
        return MemoryLayer("global" if self._channel is None else "channel", path, text, file.etag, file.utf8)

    def append_entry(
        self,
        role: str,
        done: str,
        *,
        stage: str,
        artifact: str | None = None,
        next_step: str | None = None,
        run_id: str | None = None,
        log: str | None = None,
        author: Author,
    ) -> Appended:
        """Append one entry to the log of `role`, durably; line ends in its fields become spaces.

        With a `run_id` a role has five entries, and the same entry again is found, not repeated. Raises RoleInvalidError,
        RoleUnknownError, ForbiddenError when `log` names another role's log, BodyInvalidError (also for a line over 400
        characters), SecretDetectedError, RunEntryQuotaError, UnsafeObjectError, StoreBusyError, StorageFullError,
        StoreFaultError.
        """
        role = parse_role(role, self._roles)
        if log is not None and parse_role(log, self._roles) != role:
            raise ForbiddenError(f"{role} does not write the log of {log}: only {log} does")
        for field in (stage, done, artifact, next_step):
            refuse_private(field or "", where="the entry")
        line = render_entry(self._today(), stage, done, artifact=artifact, next_step=next_step)
        refuse_private(line, where="the entry")
        return self._append(role, line, run_id, author)

    def remember(self, role: str, note: str, *, run_id: str | None = None, author: Author) -> Appended:
        """Append a short note to the log of `role`; a note that begins with "decision:" is recorded as a decision too.

        Raises as `append_entry` and `decide`.
        """
        role = parse_role(role, self._roles)
        refuse_private(note, where="the note")
        marked = split_marked(note)
        if marked is None:
            return self.append_entry(role, note, stage="note", run_id=run_id, author=author)
        title, body = marked
        if run_id is not None:
            refuse_over_quota(self._workspace, self._entries_of(run_id), role)
        decision = self.decide(role, title, body=body, run_id=run_id, author=author)
        artifact = f"decisions/{decision.id}.md"
        appended = self.append_entry(role, title, stage="decision", artifact=artifact, run_id=run_id, author=author)
        return Appended(appended.path, appended.text, appended.replayed, decision)

    def _append(self, role: str, line: str, run_id: str | None, author: Author) -> Appended:
        name, data = self._log(role), line.encode("utf-8")
        again = run_id is not None and claim_entry(self._workspace, self._entries_of(run_id), role, line)
        replayed = False

        def build(tail: Tail) -> list[bytes]:
            nonlocal replayed
            replayed = again and data in tail.lines
            if replayed:
                return []
            reason = one_line(author.reason or "an entry was appended")
            action: Action = "replace" if tail.size_bytes else "create"
            append_audit(self._workspace, AuditLine(now_iso(), author.by, action, name, reason=reason, turn=author.turn))
            return [*([] if tail.size_bytes else [head_of_log(role)]), data + b"\n"]

        append_lines(self._workspace.root, name, build)
        return Appended(name, line, replayed)

    def write_index(self, role: str, text: str, *, author: Author, expected_etag: str | None = None) -> str:
        """Replace the index, which only the orchestrator may; returns its new etag. The old bytes are kept as a version.

        Raises ForbiddenError, IndexFullError over 60 lines, PreconditionFailedError, SecretDetectedError, and as
        `replace_with_version`; the file is unchanged then.
        """
        if parse_role(role, self._roles) != ORCHESTRATOR:
            raise ForbiddenError(f"{role} does not write the index: only {ORCHESTRATOR} does")
        refuse_private(text, where="the index")
        body = text.replace("\r\n", "\n")
        data = encode_text(self._index, body if not body or body.endswith("\n") else f"{body}\n")
        if (lines := count_lines(data)) > INDEX_LIMIT:
            raise IndexFullError(f"the index would have {lines} lines, {INDEX_LIMIT} are allowed: merge some facts")
        with locked(self._workspace.root, self._index, self._workspace.lock_of(self._index)) as held:
            current = read_text(self._workspace.root, self._index)
            if expected_etag is not None and (current is None or current.etag != expected_etag):
                raise changed_meanwhile(self._index, current, body)
            replace_with_version(self._workspace, self._index, data, held, author=author)
        return etag_of(data)

    def decide(
        self,
        role: str,
        title: str,
        *,
        body: str,
        slug: str | None = None,
        day: str | None = None,
        supersedes: str | None = None,
        run_id: str | None = None,
        author: Author,
    ) -> Decision:
        """Record a decision in a file of its own, which is never changed; a taken name gets `-2`, `-3` and so on.

        `day` (YYYY-MM-DD) is today in UTC unless given. Raises RoleInvalidError, RoleUnknownError, BodyInvalidError,
        SecretDetectedError, TooLargeError over 16 KB, NotFoundError when `supersedes` is no decision, StorageFullError,
        StoreFaultError, UnsafeObjectError, StoreBusyError.
        """
        for text in (title, body):
            refuse_private(text, where="the decision")
        title = clean_title(title)
        decision = Decision(
            id="",
            date=(self._today() if day is None else parse_day(day)).isoformat(),
            slug=slug_of(title) if slug is None else parse_slug(slug),
            title=title,
            status="accepted",
            supersedes=None if supersedes is None else self.read_decision(supersedes).id,
            role=parse_role(role, self._roles),
            run_id=None if run_id is None else parse_run_id(run_id),
            body=clean_body(body),
        )
        with self._locked():
            return record_decision(self._workspace, self._decisions, decision, author=author)

    def decisions(self, *, limit: int = 50) -> list[Decision]:
        """The latest decisions, newest first. Raises UnsafeObjectError, StoreFaultError."""
        return list_decisions(self._workspace, self._decisions, limit=limit)

    def read_decision(self, decision_id: str) -> Decision:
        """One decision by its id. Raises NotFoundError, UnsafeObjectError."""
        return read_decision(self._workspace, self._decisions, decision_id)

    def refuse_direct_write(self, name: str) -> None:
        """Refuse to write or remove a file of the tree by its workspace-relative name; other files are none of its business.

        Raises DecisionImmutableError for a decision, ForbiddenError for any other file of the tree or of the runs.
        """
        if name.startswith(f"{self._decisions}/"):
            raise DecisionImmutableError(f"{name!r} is a decision and never changes: record one that supersedes it")
        if name.startswith((f"{self._folder}/", f"{self._workspace.team_runs(self._channel)}/")):
            raise ForbiddenError(f"{name!r} is written through the team's own commands only")

    def compact(self, role: str | None = None, *, author: Author) -> Compaction:
        """Archive what overflows in every log and take repetitions out of the index; with `role` only that role's log.

        A log with an impossible date, or an index with too many unique lines, is left as it is and reported. Raises
        AgentsActiveError (nothing was touched) while an attempt of a run is not finished, RoleInvalidError, RoleUnknownError,
        UnsafeObjectError, TooLargeError, StoreBusyError, StorageFullError, StoreFaultError.
        """
        roles = self._all_roles() if role is None else [parse_role(role, self._roles)]
        with self._locked() as held:
            if attempts := self.runs.open_attempts():
                tasks = ", ".join(f"{task} of {run_id}" for run_id, task in attempts[:5])
                raise AgentsActiveError(f"agents are at work ({tasks}): compact when they are done", attempts=tuple(attempts))
            done = {
                each: compact_log(self._workspace, self._folder, each, held, author=author)
                for each in roles
                if self._stands(self._log(each))
            }
            index = compact_index(self._workspace, self._index, author=author) if role is None else None
        return Compaction(done, index)

    def _locked(self) -> AbstractContextManager[Held]:
        """The lock of the tree's upkeep. Appending an entry needs none of it: a log is locked on itself."""
        return locked(self._workspace.root, self._folder, self._workspace.lock_of(self._folder))

    def _log(self, role: str) -> str:
        return f"{self._folder}/log/{role}.md"

    def _entries_of(self, run_id: str) -> str:
        return self._workspace.team_entries(self._folder, parse_run_id(run_id))

    def _all_roles(self) -> list[str]:
        """The configured roles, and those that have a log although they are not configured any more."""
        try:
            with opened_folder(self._workspace.root, f"{self._folder}/log") as fd, os.scandir(fd) as entries:
                found = sorted(entry.name.removesuffix(".md") for entry in entries if entry.name.endswith(".md"))
        except FileNotFoundError:
            found = []
        return [*self._roles, *(role for role in found if is_role(role) and role not in self._roles)]

    def _entries(self, role: str) -> list[Entry]:
        return parse_entries(read_bytes(self._workspace.root, self._log(role), limit=MAX_KEPT_BYTES) or b"")

    def _stands(self, name: str) -> bool:
        """Whether the file is there. Raises UnsafeObjectError when something else is."""
        try:
            os.close(open_regular(self._workspace.root, name))
        except FileNotFoundError:
            return False
        return True

    def _today(self) -> date:
        return self._now().astimezone(UTC).date()
