"""Runs: the checkpoints of several agents' work, one append-only file of events each; appending, reading, resuming.

What events are is in `run_events`, what they add up to in `run_state`, what that means now in `run_report`.
"""

import base64
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Container
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from persistence.errors import (
    BodyInvalidError,
    EventRefusedError,
    NotFoundError,
    PersistenceError,
    RunConflictError,
    RunCorruptError,
)
from persistence.files import open_regular, opened_folder, translate
from persistence.lines import append_after
from persistence.teams.log import DEFAULT_ROLES, parse_role, refuse_private
from persistence.teams.run_events import (
    AttemptStarted,
    Body,
    Envelope,
    Event,
    TaskAdded,
    artifacts_of,
    check_by,
    encode_event,
    hash_of,
    parse_body,
    texts_of,
    time_text,
)
from persistence.teams.run_report import MAX_ATTEMPTS, RunReport, paths_of, report
from persistence.teams.run_state import RunState, after, check_event, fold, interruptions
from persistence.workspace import ChannelId, Workspace, is_in_scope

_RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z-[A-Z2-7]{6}\Z", re.ASCII)
_SUFFIX: Final = ".jsonl"
_KEPT_STATES: Final = 64


def utc_now() -> datetime:
    """The clock that is used unless another one is given."""
    return datetime.now(UTC)


def parse_run_id(text: str) -> str:
    """Check a run id from outside. Raises BodyInvalidError."""
    if not _RUN_ID.match(text):
        raise BodyInvalidError(f"{text[:60]!r} is no run id: it looks like 20260131T090500Z-ABC234")
    return text


@dataclass(frozen=True, slots=True)
class Head:
    """The last event of a run: its number, and the hash that the next one names as `prev`."""

    run_id: str
    seq: int
    head: str


@dataclass(frozen=True, slots=True)
class Resume:
    """What to go on with. `run` is the one that was resumed: None when there is none or when several wait to be chosen from.

    `unfinished` are all that could be resumed, newest first; `corrupt` are ids of those that can only be read.
    """

    run: RunReport | None
    unfinished: tuple[RunReport, ...]
    corrupt: tuple[str, ...]


def _no_run(run_id: str) -> NotFoundError:
    return NotFoundError(f"there is no run {run_id}: list the runs")


def _refuse_corrupt(state: RunState) -> None:
    if state.corrupt is not None:
        raise RunCorruptError(f"the run can only be read, {state.corrupt}: start another one")


class Runs:
    """The run files of one scope (`channel` None: the whole workspace). One object may be used by many threads."""

    def __init__(
        self,
        workspace: Workspace,
        channel: ChannelId | None,
        *,
        roles: Container[str] = DEFAULT_ROLES,
        max_attempts: int = MAX_ATTEMPTS,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        """Take the scope, the configured roles and the clock that leases are compared with."""
        self._workspace = workspace
        self._channel = channel
        self._folder = workspace.team_runs(channel)
        self._roles = roles
        self._max_attempts = max_attempts
        self._now = now
        self._guard = threading.Lock()
        self._states: dict[str, RunState] = {}
        self._finished: set[str] = set()

    def start(self, goal: str, *, by: str) -> Head:
        """Begin a run. Raises BodyInvalidError, SecretDetectedError, and as `append`."""
        moment = self._now().astimezone(UTC)
        run_id = f"{moment:%Y%m%dT%H%M%SZ}-{base64.b32encode(secrets.token_bytes(4)).decode('ascii')[:6]}"
        body = parse_body({"type": "run.started", "goal": goal, "workspace": self._channel or "."})
        return self._append(run_id, body, by=by, seq=1, prev=None)

    def append(self, run_id: str, body: Body, *, by: str, seq: int, prev: str | None) -> Head:
        """Append an event as number `seq` after the one with the hash `prev`, durably.

        Raises NotFoundError, RunConflictError (with the present head) when somebody else was faster, EventRefusedError for what
        can't follow, ForbiddenError for an agent that answers a gate, RunCorruptError, TooLargeError, SecretDetectedError,
        RoleUnknownError, BodyInvalidError for a path of another scope, StoreBusyError, StorageFullError, StoreFaultError.
        """
        os.close(self._open(run_id))  # an append must not make it
        return self._append(run_id, body, by=by, seq=seq, prev=prev)

    def _append(self, run_id: str, body: Body, *, by: str, seq: int, prev: str | None) -> Head:
        self._check(body, by)

        def choose(state: RunState) -> list[Body]:
            if (seq, prev) != (state.seq + 1, state.head):
                raise RunConflictError(
                    f"the run is at event {state.seq}: read it again and append number {state.seq + 1}",
                    seq=state.seq,
                    head=state.head,
                )
            return [body]

        state = self._append_chosen(run_id, choose, by=by)
        return Head(run_id, state.seq, str(state.head))

    def _check(self, body: Body, by: str) -> None:
        """What is to be refused whatever the run holds."""
        check_by(by)
        if by.startswith("agent:"):
            parse_role(by.removeprefix("agent:"), self._roles)
        if isinstance(body, TaskAdded | AttemptStarted):
            parse_role(body.role, self._roles)
        for text in texts_of(body):
            refuse_private(text, where=f"the event {body.type}")
        for artifact in artifacts_of(body):
            if not is_in_scope(self._workspace, self._channel, artifact.path):
                raise BodyInvalidError(f"{artifact.path!r} belongs to another channel: name a file of this one or a global one")

    def _append_chosen(self, run_id: str, choose: Callable[[RunState], list[Body]], *, by: str) -> RunState:
        """Append what `choose` makes of the run as it is under its lock; returns the state after it."""
        state = RunState(run_id)

        def build(fd: int) -> tuple[int, list[bytes]]:
            nonlocal state
            state = self._read_open(fd, self._known(run_id, fd))
            _refuse_corrupt(state)
            sound, lines = state.size_bytes, []
            for body in choose(state):
                check_event(state, body, by=by)
                state, line = self._next(state, body, by)
                lines.append(line)
            return sound, lines

        append_after(self._workspace.root, self._name(run_id), build)
        self._keep(state)
        return state

    def _next(self, state: RunState, body: Body, by: str) -> tuple[RunState, bytes]:
        envelope = Envelope(
            seq=state.seq + 1,
            ts=time_text(self._now()),
            run_id=state.run_id,
            type=body.type,
            by=by,
            prev=state.head,
        )
        line = encode_event(envelope, body)
        return after(state, Event(envelope, body), line[:-1]), line

    def report(self, run_id: str) -> RunReport:
        """How a run stands now: leases by the clock, artifacts and approvals by the files' present hashes. Changes nothing.

        Raises NotFoundError, BodyInvalidError, StoreFaultError.
        """
        state, torn_tail = self._read(run_id)
        revs = {path: self._rev_of(path) for path in paths_of(state)}
        now = time_text(self._now())
        return report(state, now=now, revs=revs, torn_tail=torn_tail, max_attempts=self._max_attempts)

    def ids(self) -> list[str]:
        """The ids of all runs, newest first."""
        try:
            with opened_folder(self._workspace.root, self._folder) as fd, os.scandir(fd) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        ids = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
        return sorted((run_id for run_id in ids if _RUN_ID.match(run_id)), reverse=True)

    def page(self, *, limit: int = 50, before: str | None = None) -> list[RunReport]:
        """The newest runs, or those before the id `before`, newest first."""
        ids = [run_id for run_id in self.ids() if before is None or run_id < before]
        return [found for run_id in ids[:limit] if (found := self._report_or_none(run_id)) is not None]

    def _report_or_none(self, run_id: str) -> RunReport | None:
        try:
            return self.report(run_id)
        except NotFoundError:  # it was being made, and never was
            return None

    def unfinished(self) -> list[str]:
        """The ids of the runs without run.finished, newest first."""
        return [state.run_id for state in self._unfinished()]

    def _unfinished(self) -> list[RunState]:
        states = [self._state_or_none(run_id) for run_id in self.ids() if run_id not in self._finished]
        return [state for state in states if state is not None and state.unfinished]

    def _state_or_none(self, run_id: str) -> RunState | None:
        try:
            return self._read(run_id)[0]
        except NotFoundError:
            return None

    def open_attempts(self) -> list[tuple[str, str]]:
        """(run id, task) of each attempt that was started and not finished; of a corrupt run only those with a live lease."""
        now = time_text(self._now())
        return [
            (state.run_id, task.name)
            for state in self._unfinished()
            for task in state.tasks.values()
            if task.open is not None and (state.corrupt is None or task.open.lease_until > now)
        ]

    def resume(self, run_id: str | None = None) -> Resume:
        """Go on with the only unfinished run, or with the named one: attempts whose lease ran out are recorded as interrupted.

        Several unfinished runs are listed and none is touched. Raises NotFoundError, EventRefusedError for a finished run,
        RunCorruptError, StoreBusyError, StorageFullError, StoreFaultError.
        """
        states = self._unfinished()
        sound = [state.run_id for state in states if state.corrupt is None]
        corrupt = tuple(state.run_id for state in states if state.corrupt is not None)
        chosen = run_id if run_id is not None else sound[0] if len(sound) == 1 else None
        if chosen is not None:
            self._interrupt_expired(chosen)
        run = None if chosen is None else self.report(chosen)
        return Resume(run, tuple(self.report(each) for each in sound), corrupt)

    def _interrupt_expired(self, run_id: str) -> None:
        state, torn_tail = self._read(run_id)
        _refuse_corrupt(state)
        if state.outcome is not None:
            raise EventRefusedError(f"the run {run_id} is finished: start another one")
        if not torn_tail and not interruptions(state, time_text(self._now())):
            return
        self._append_chosen(run_id, lambda state: list(interruptions(state, time_text(self._now()))), by="system")

    def _name(self, run_id: str) -> str:
        return f"{self._folder}/{parse_run_id(run_id)}{_SUFFIX}"

    def _open(self, run_id: str) -> int:
        try:
            return open_regular(self._workspace.root, self._name(run_id))
        except FileNotFoundError as err:
            raise _no_run(run_id) from err

    def _read(self, run_id: str) -> tuple[RunState, bool]:
        """The state of a run, and whether a torn last line was left out of it. Raises NotFoundError."""
        fd = self._open(run_id)
        try:
            state = self._read_open(fd, RunState(run_id))  # from the start: what was checked once may have been edited since
            size = os.fstat(fd).st_size
        except OSError as err:
            raise translate(err, self._name(run_id)) from err
        finally:
            os.close(fd)
        if state.seq == 0 and state.corrupt is None:
            raise _no_run(run_id)
        return state, state.corrupt is None and size > state.size_bytes

    def _known(self, run_id: str, fd: int) -> RunState:
        """How far this object has come with the file, so that appending reads only what is new."""
        state = self._states.get(run_id, RunState(run_id))
        last = os.pread(fd, state.line_bytes, state.size_bytes - state.line_bytes)
        same = state.head is None or (last.endswith(b"\n") and hash_of(last[:-1]) == state.head)
        return state if same else RunState(run_id)

    def _read_open(self, fd: int, state: RunState) -> RunState:
        """Fold what follows `state` in the file."""
        parts = []
        start = state.size_bytes
        while part := os.pread(fd, 1 << 20, start):
            parts.append(part)
            start += len(part)
        state = fold(state, b"".join(parts))
        self._keep(state)
        return state

    def _keep(self, state: RunState) -> None:
        """Remember a state, but for one that somebody may repair by hand."""
        with self._guard:
            self._states.pop(state.run_id, None)
            if state.corrupt is None and state.outcome is None:
                self._states[state.run_id] = state
            elif state.corrupt is None:
                self._finished.add(state.run_id)
            if len(self._states) > _KEPT_STATES:
                del self._states[next(iter(self._states))]

    def _rev_of(self, path: str) -> str | None:
        """The revision of a file now; None when there is none that this scope may see."""
        if not is_in_scope(self._workspace, self._channel, path):
            return None
        try:
            with os.fdopen(open_regular(self._workspace.root, path), "rb") as file:
                return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        except (FileNotFoundError, PersistenceError, OSError):
            return None
