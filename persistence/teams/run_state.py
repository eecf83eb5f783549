"""What a run's events add up to, and which event may follow. Pure.

Which of it still counts, by the clock and the files, is decided in `run_report`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, assert_never

from persistence.errors import EventRefusedError, ForbiddenError, PersistenceError
from persistence.records import decode_line
from persistence.teams.run_events import (
    Artifact,
    AttemptFinished,
    AttemptHeartbeat,
    AttemptStarted,
    Body,
    Event,
    GateApproved,
    GateRejected,
    GateRequested,
    RunFinished,
    RunStarted,
    TaskAdded,
    hash_of,
    parse_event,
)

Outcome: TypeAlias = Literal["ok", "failed", "cancelled", "interrupted"]


@dataclass(frozen=True, slots=True)
class Try:
    """One attempt of a task; `outcome` is None until it is finished."""

    number: int
    role: str
    lease_until: str
    outcome: Outcome | None = None
    artifacts: tuple[Artifact, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A task and its attempts, oldest first."""

    name: str
    role: str
    title: str
    depends_on: tuple[str, ...]
    tries: tuple[Try, ...] = ()

    @property
    def last(self) -> Try | None:
        return self.tries[-1] if self.tries else None

    @property
    def open(self) -> Try | None:
        """The attempt that was started and not finished."""
        return self.last if self.last is not None and self.last.outcome is None else None


@dataclass(frozen=True, slots=True)
class Gate:
    """What a person is asked to approve, and what was answered to the latest request."""

    name: str
    task: str
    requested: frozenset[Artifact]
    answer: Literal["approved", "rejected"] | None = None
    answered: frozenset[Artifact] = frozenset()
    by: str | None = None


@dataclass(frozen=True, slots=True)
class RunState:
    """The fold of a run's lines up to byte `size_bytes`; `head` is the hash of the last one, `line_bytes` its length.

    `corrupt` is why the run is only read: the rest of the file is not part of the state. `unknown` names what a newer program
    wrote. The mappings are never changed in place.
    """

    run_id: str
    seq: int = 0
    head: str | None = None
    size_bytes: int = 0
    line_bytes: int = 0
    goal: str = ""
    started: str | None = None
    updated: str | None = None
    outcome: Literal["ok", "failed", "aborted"] | None = None
    tasks: Mapping[str, Task] = field(default_factory=dict)
    gates: Mapping[str, Gate] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    corrupt: str | None = None

    @property
    def unfinished(self) -> bool:
        return self.seq > 0 and self.outcome is None


def fold(state: RunState, data: bytes) -> RunState:
    """`state` after the bytes that follow it in the file. A torn last line (no LF, or no JSON object) is left out.

    So `size_bytes` says where the sound part ends. A bad line before the last one makes the run corrupt.
    """
    *lines, rest = data.split(b"\n")
    for place, line in enumerate(lines):
        if state.corrupt is not None:
            return state
        is_last = place == len(lines) - 1 and not rest
        if is_last and decode_line(line) is None:
            return state
        state = _follow(state, line)
    return state


def _follow(state: RunState, line: bytes) -> RunState:
    number = state.seq + 1
    try:
        event = parse_event(line)
        _check_place(state, event)
        if event.body is not None:
            check_event(state, event.body, by=event.envelope.by)
    except (ValueError, PersistenceError) as err:
        return replace(state, corrupt=f"line {number}: {err}")
    return after(state, event, line)


def _check_place(state: RunState, event: Event) -> None:
    envelope = event.envelope
    if envelope.run_id != state.run_id:
        raise ValueError(f"it belongs to the run {envelope.run_id[:60]!r}")
    if envelope.seq != state.seq + 1:
        raise ValueError(f"it has the number {envelope.seq}, a line is missing or comes twice")
    if envelope.prev != state.head:
        raise ValueError("its prev is not the hash of the line before")


def after(state: RunState, event: Event, line: bytes) -> RunState:
    """The state after an event that may follow; `line` is the raw one, without its LF."""
    envelope = event.envelope
    unknown = state.unknown if event.unknown is None else (*state.unknown, f"line {envelope.seq}: {event.unknown}")
    state = replace(
        state,
        seq=envelope.seq,
        head=hash_of(line),
        size_bytes=state.size_bytes + len(line) + 1,
        line_bytes=len(line) + 1,
        started=state.started or envelope.ts,
        updated=envelope.ts,
        unknown=unknown,
    )
    return state if event.body is None else _apply(state, event.body, envelope.by)


def _apply(state: RunState, body: Body, by: str) -> RunState:
    match body:
        case TaskAdded() | AttemptStarted() | AttemptHeartbeat() | AttemptFinished():
            return replace(state, tasks={**state.tasks, body.task: _task_after(state, body)})
        case GateRequested() | GateApproved() | GateRejected():
            return replace(state, gates={**state.gates, body.gate: _gate_after(state, body, by)})
        case RunStarted():
            return replace(state, goal=body.goal)
        case RunFinished():
            return replace(state, outcome=body.outcome)
        case _:
            assert_never(body)


def _task_after(state: RunState, body: TaskAdded | AttemptStarted | AttemptHeartbeat | AttemptFinished) -> Task:
    if isinstance(body, TaskAdded):
        return Task(body.task, body.role, body.title, body.depends_on)
    task = state.tasks[body.task]
    if isinstance(body, AttemptStarted):
        return replace(task, tries=(*task.tries, Try(body.attempt, body.role, body.lease_until)))
    last = task.tries[-1]
    if isinstance(body, AttemptHeartbeat):
        last = replace(last, lease_until=body.lease_until)
    else:
        last = replace(last, outcome=body.outcome, artifacts=body.artifacts)
    return replace(task, tries=(*task.tries[:-1], last))


def _gate_after(state: RunState, body: GateRequested | GateApproved | GateRejected, by: str) -> Gate:
    if isinstance(body, GateRequested):
        return Gate(body.gate, body.task, frozenset(body.artifacts))
    answer: Literal["approved", "rejected"] = "approved" if isinstance(body, GateApproved) else "rejected"
    return replace(state.gates[body.gate], answer=answer, answered=frozenset(body.artifacts), by=by)


def check_event(state: RunState, body: Body, *, by: str) -> None:
    """Refuse what can't come next. Raises EventRefusedError, and ForbiddenError for an answer to a gate that no person gives."""
    if isinstance(body, RunStarted) != (state.seq == 0):
        raise EventRefusedError("a run begins with run.started, once")
    if state.outcome is not None:
        raise EventRefusedError("the run is finished: start another one")
    match body:
        case TaskAdded():
            _check_new_task(state, body)
        case AttemptStarted():
            _check_start(_task(state, body.task), body.attempt)
        case AttemptHeartbeat() | AttemptFinished():
            _check_open(_task(state, body.task), body.attempt)
        case GateRequested() | GateApproved() | GateRejected():
            _check_gate(state, body, by)
        case RunStarted() | RunFinished():
            pass
        case _:
            assert_never(body)


def _task(state: RunState, name: str) -> Task:
    if name not in state.tasks:
        raise EventRefusedError(f"the run has no task {name!r}: add it first")
    return state.tasks[name]


def _check_new_task(state: RunState, body: TaskAdded) -> None:
    if body.task in state.tasks:
        raise EventRefusedError(f"the run has a task {body.task!r} already")
    for name in body.depends_on:  # only on earlier ones, so that no circle can arise
        _task(state, name)


def _check_start(task: Task, number: int) -> None:
    if task.open is not None:
        raise EventRefusedError(f"attempt {task.open.number} of {task.name!r} is not finished: finish it first")
    if number != len(task.tries) + 1:
        raise EventRefusedError(f"the next attempt of {task.name!r} is number {len(task.tries) + 1}, not {number}")


def _check_open(task: Task, number: int) -> None:
    if task.open is None or task.open.number != number:
        raise EventRefusedError(f"attempt {number} of {task.name!r} is not under way: it was never started, or it is finished")


def _check_gate(state: RunState, body: GateRequested | GateApproved | GateRejected, by: str) -> None:
    if isinstance(body, GateRequested):
        _task(state, body.task)
        return
    if not by.startswith("human:"):
        raise ForbiddenError("a gate is answered by a person, as human:<id>")
    if body.gate not in state.gates:
        raise EventRefusedError(f"gate {body.gate!r} was not requested")
    for artifact in body.artifacts:
        if artifact not in state.gates[body.gate].requested:
            raise EventRefusedError(f"{artifact.path!r} in this revision was not part of the request for gate {body.gate!r}")


def interruptions(state: RunState, now: str) -> list[AttemptFinished]:
    """What a resume must say first: each attempt whose lease ran out is interrupted, never done."""
    return [
        AttemptFinished(
            type="attempt.finished", task=task.name, attempt=task.open.number, outcome="interrupted", note="its lease ran out"
        )
        for task in state.tasks.values()
        if task.open is not None and task.open.lease_until <= now
    ]
