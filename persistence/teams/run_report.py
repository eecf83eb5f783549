"""How a run stands: what is done, running or blocked, and which approval still counts. Pure.

The time and the present hashes of files come from outside, what happened from `run_state`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from persistence.teams.run_events import Artifact
from persistence.teams.run_state import Gate, Outcome, RunState, Task

MAX_ATTEMPTS: Final = 3

TaskStatus: TypeAlias = Literal["waiting", "ready", "running", "expired", "done", "needs_recheck", "blocked"]
GateStatus: TypeAlias = Literal["requested", "approved", "rejected", "approval_stale"]


@dataclass(frozen=True, slots=True)
class TaskReport:
    """A task as it stands now. `next_attempt` is set where another one may start; `changed` are artifacts not as recorded."""

    task: str
    role: str
    title: str
    depends_on: tuple[str, ...]
    status: TaskStatus
    attempts: int
    next_attempt: int | None
    lease_until: str | None
    outcome: Outcome | None
    artifacts: tuple[Artifact, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GateReport:
    """A gate as it stands now; an approval whose files changed (`changed`) is stale: ask again."""

    gate: str
    task: str
    status: GateStatus
    by: str | None
    requested: tuple[Artifact, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunReport:
    """A run as it stands now. `seq` and `head` are what the next event must follow."""

    run_id: str
    goal: str
    seq: int
    head: str | None
    started: str | None
    updated: str | None
    outcome: Literal["ok", "failed", "aborted"] | None
    torn_tail: bool
    corrupt: str | None
    unknown: tuple[str, ...]
    tasks: tuple[TaskReport, ...]
    gates: tuple[GateReport, ...]


def paths_of(state: RunState) -> set[str]:
    """The files whose present hash decides what still counts."""
    done = [task.last for task in state.tasks.values() if task.last is not None and task.last.outcome == "ok"]
    artifacts = [artifact for last in done for artifact in last.artifacts]
    artifacts += [artifact for gate in state.gates.values() if gate.answer == "approved" for artifact in gate.answered]
    return {artifact.path for artifact in artifacts}


def report(
    state: RunState,
    *,
    now: str,
    revs: Mapping[str, str | None],
    torn_tail: bool = False,
    max_attempts: int = MAX_ATTEMPTS,
) -> RunReport:
    """How the run stands at the time `now`, given the present `revs` of `paths_of(state)` (None: no such file)."""
    done: set[str] = set()
    tasks = []
    for task in state.tasks.values():  # those that a task depends on come before it
        tasks.append(_report_task(task, now, revs, ready=done.issuperset(task.depends_on), max_attempts=max_attempts))
        if tasks[-1].status == "done":
            done.add(task.name)
    return RunReport(
        run_id=state.run_id,
        goal=state.goal,
        seq=state.seq,
        head=state.head,
        started=state.started,
        updated=state.updated,
        outcome=state.outcome,
        torn_tail=torn_tail,
        corrupt=state.corrupt,
        unknown=state.unknown,
        tasks=tuple(tasks),
        gates=tuple(_report_gate(gate, revs) for gate in state.gates.values()),
    )


def _report_task(task: Task, now: str, revs: Mapping[str, str | None], *, ready: bool, max_attempts: int) -> TaskReport:
    last = task.last
    changed = _changed(last.artifacts, revs) if last is not None and last.outcome == "ok" else ()
    status: TaskStatus = "ready" if ready else "waiting"
    if last is not None and last.outcome is None:
        status = "running" if last.lease_until > now else "expired"
    elif last is not None and last.outcome == "ok":
        status = "needs_recheck" if changed else "done"
    elif len(task.tries) >= max_attempts:
        status = "blocked"
    return TaskReport(
        task=task.name,
        role=task.role,
        title=task.title,
        depends_on=task.depends_on,
        status=status,
        attempts=len(task.tries),
        next_attempt=len(task.tries) + 1 if status in ("ready", "needs_recheck") else None,
        lease_until=task.open.lease_until if task.open is not None else None,
        outcome=last.outcome if last is not None else None,
        artifacts=last.artifacts if last is not None else (),
        changed=changed,
    )


def _report_gate(gate: Gate, revs: Mapping[str, str | None]) -> GateReport:
    changed = _changed(gate.answered, revs) if gate.answer == "approved" else ()
    status: GateStatus = "requested"
    if gate.answer == "rejected":
        status = "rejected"
    elif changed:
        status = "approval_stale"
    elif gate.answer == "approved" and gate.answered == gate.requested:
        status = "approved"
    requested = tuple(sorted(gate.requested, key=lambda artifact: (artifact.path, artifact.rev)))
    return GateReport(gate.name, gate.task, status, gate.by, requested, changed)


def _changed(artifacts: Iterable[Artifact], revs: Mapping[str, str | None]) -> tuple[str, ...]:
    return tuple(sorted({artifact.path for artifact in artifacts if revs.get(artifact.path) != artifact.rev}))
