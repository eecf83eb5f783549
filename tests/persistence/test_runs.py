"""Runs: what may be appended, what a damaged file says, and what counts as done, running, blocked, approved (team.md, 1.C.3)."""

import hashlib
import json
import multiprocessing
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.errors import (
    BodyInvalidError,
    EventRefusedError,
    ForbiddenError,
    NotFoundError,
    PersistenceError,
    RoleUnknownError,
    RunConflictError,
    RunCorruptError,
    SecretDetectedError,
    TooLargeError,
    UnsafeObjectError,
)
from persistence.runs import Head, Runs
from persistence.teams.run_events import MAX_EVENT_BYTES, hash_of, parse_body, time_text
from persistence.teams.run_state import RunState, fold
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")
NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
OTHER = "20260105T120000Z-ZZZZZZ"
REV = "sha256:" + "0" * 64


class Clock:
    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def runs(workspace: Workspace, clock: Clock) -> Runs:
    return Runs(workspace, OPS, now=clock)


def add(runs: Runs, head: Head, *events: dict, by: str = "agent:dev") -> Head:
    for event in events:
        head = runs.append(head.run_id, parse_body(event), by=by, seq=head.seq + 1, prev=head.head)
    return head


def task(name: str = "t1", **extra) -> dict:
    return {"type": "task.added", "task": name, "role": "dev", "title": "Build it", **extra}


def started(name: str = "t1", attempt: int = 1, *, until: datetime = NOON + HOUR) -> dict:
    return {"type": "attempt.started", "task": name, "attempt": attempt, "role": "dev", "lease_until": time_text(until)}


def finished(name: str = "t1", attempt: int = 1, outcome: str = "ok", *artifacts: dict) -> dict:
    return {"type": "attempt.finished", "task": name, "attempt": attempt, "outcome": outcome, "artifacts": list(artifacts)}


def requested(*artifacts: dict, gate: str = "g1", name: str = "t1") -> dict:
    return {"type": "gate.requested", "gate": gate, "task": name, "artifacts": list(artifacts)}


def answered(answer: str, *artifacts: dict, gate: str = "g1") -> dict:
    return {"type": f"gate.{answer}", "gate": gate, "artifacts": list(artifacts)}


def write_artifact(workspace: Workspace, path: str, text: str) -> dict:
    file = workspace.root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return {"path": path, "rev": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"}


def file_of(workspace: Workspace, run_id: str) -> Path:
    return workspace.root / f"ops/.team/runs/{run_id}.jsonl"


def status_of(runs: Runs, run_id: str, name: str = "t1") -> str:
    return next(each.status for each in runs.report(run_id).tasks if each.task == name)


def gate_of(runs: Runs, run_id: str) -> str:
    return runs.report(run_id).gates[0].status


def test_a_run_is_one_json_object_a_line_in_a_chain_of_hashes(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship 数据库", by="human:amy"), task(depends_on=[]))
    data = file_of(workspace, head.run_id).read_bytes()
    first, second = data.split(b"\n")[:-1]
    assert json.loads(first) == {
        "v": 1,
        "seq": 1,
        "ts": "2026-01-05T12:00:00.000Z",
        "run_id": head.run_id,
        "type": "run.started",
        "by": "human:amy",
        "prev": None,
        "goal": "Ship 数据库",
        "workspace": "ops",
    }
    assert json.loads(second)["prev"] == f"sha256:{hashlib.sha256(first).hexdigest()}"
    assert head == Head(head.run_id, 2, f"sha256:{hashlib.sha256(second).hexdigest()}")
    assert head.run_id.startswith("20260105T120000Z-")
    assert data.endswith(b"\n")


def test_a_run_is_found_again_by_another_process(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    report = Runs(workspace, OPS, now=lambda: NOON).report(head.run_id)
    assert (report.goal, report.seq, report.head, report.outcome) == ("Ship", 3, head.head, None)
    assert (report.torn_tail, report.corrupt, report.unknown) == (False, None, ())
    assert (report.tasks[0].status, report.tasks[0].attempts) == ("running", 1)


def test_the_workspace_has_runs_of_its_own(workspace: Workspace):
    head = Runs(workspace, None).start("Ship", by="system")
    line = json.loads((workspace.root / f".team/runs/{head.run_id}.jsonl").read_text())
    assert line["workspace"] == "."
    assert Runs(workspace, OPS).ids() == []


@pytest.mark.parametrize(
    "event",
    [
        {"type": "task.exploded", "task": "t1"},
        {"task": "t1"},
        task(colour="red"),
        {**task(), "title": ""},
        {**task(), "title": "x" * 121},
        {**task(), "task": "../x"},
        {**task(), "role": "Dev"},
        {**started(), "attempt": 0},
        {**started(), "attempt": "1"},
        {**started(), "attempt": True},
        {**started(), "lease_until": "2026-02-30T00:00:00.000Z"},
        {**started(), "lease_until": "2026-01-05T12:00:00Z"},
        {**started(), "lease_until": "2026-01-05T12:00:00.000+01:00"},
        finished("t1", 1, "great"),
        {**finished(), "note": "x" * 201},
        {**finished(), "artifacts": [{"path": "a", "rev": "0" * 64}]},
        {**finished(), "artifacts": [{"path": "a", "rev": REV, "size": 1}]},
        {"type": "run.started", "goal": "x" * 201, "workspace": "ops"},
        {"type": "run.finished", "outcome": "fine"},
        {**finished(), "note": float("nan")},
    ],
)
def test_an_unknown_type_or_field_and_a_bad_value_are_refused(event):
    with pytest.raises(BodyInvalidError):
        parse_body(event)


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../x",
        "a/../b",
        "./a",
        "a//b",
        "a/",
        "",
        ".",
        "a\\b",
        "a\0b",
        ".recalld/VERSION",
        ".Recalld/x",
        "e\u0301.md",
    ],
)
def test_an_artifact_lies_inside_the_workspace_in_its_one_spelling(path):
    with pytest.raises(BodyInvalidError, match="path"):
        parse_body(finished("t1", 1, "ok", {"path": path, "rev": REV}))


def test_an_artifact_of_another_channel_is_refused(workspace: Workspace, runs: Runs):
    theirs = write_artifact(workspace, "hr/MEMORY.md", "secret plans")
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    with pytest.raises(BodyInvalidError, match="another channel"):
        add(runs, head, finished("t1", 1, "ok", theirs))
    add(runs, head, finished("t1", 1, "ok", write_artifact(workspace, "memory/a.md", "global")))


def test_a_run_does_not_tell_what_stands_in_a_file_of_another_channel(workspace: Workspace, runs: Runs):
    theirs = write_artifact(workspace, "hr/MEMORY.md", "secret plans")
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    path = file_of(workspace, head.run_id)
    path.write_bytes(path.read_bytes() + chain([finished("t1", 1, "ok", theirs)], head.run_id, first=4, prev=head.head))
    assert status_of(runs, head.run_id) == "needs_recheck"


def test_who_appends_is_an_agent_of_a_known_role_a_person_or_the_system(runs: Runs):
    head = runs.start("Ship", by="human:amy")
    for by in ("dev", "agent:", "agent:Dev", "human:", "human:a b", "root", "system\n", ""):
        with pytest.raises(BodyInvalidError):
            add(runs, head, task(), by=by)
    with pytest.raises(RoleUnknownError):
        add(runs, head, task(), by="agent:pilot")
    with pytest.raises(RoleUnknownError):
        add(runs, head, {**task(), "role": "pilot"})
    add(runs, head, task(), by="system")


@pytest.mark.parametrize("seq_off", [-1, 1])
def test_a_wrong_number_is_a_conflict_that_tells_the_present_head(workspace: Workspace, runs: Runs, seq_off):
    head = add(runs, runs.start("Ship", by="human:amy"), task())
    before = file_of(workspace, head.run_id).read_bytes()
    with pytest.raises(RunConflictError) as caught:
        runs.append(head.run_id, parse_body(task("t2")), by="agent:dev", seq=3 + seq_off, prev=head.head)
    assert (caught.value.code, caught.value.seq, caught.value.head) == ("conflict", 2, head.head)
    assert file_of(workspace, head.run_id).read_bytes() == before


@pytest.mark.parametrize("prev", [None, REV])
def test_a_wrong_prev_is_a_conflict(runs: Runs, prev):
    head = add(runs, runs.start("Ship", by="human:amy"), task())
    with pytest.raises(RunConflictError) as caught:
        runs.append(head.run_id, parse_body(task("t2")), by="agent:dev", seq=3, prev=prev)
    assert caught.value.head == head.head


@pytest.mark.parametrize(
    ("before", "event"),
    [
        ([], {"type": "run.started", "goal": "again", "workspace": "ops"}),
        ([task()], task()),
        ([], task("t2", depends_on=["t1"])),
        ([], task("t1", depends_on=["t1"])),
        ([], started()),
        ([task()], started(attempt=2)),
        ([task(), started()], started(attempt=2)),
        ([task(), started()], started(attempt=1)),
        ([task(), started(), finished()], started(attempt=1)),
        ([task(), started(), finished()], started(attempt=3)),
        ([task()], finished()),
        ([task(), started(), finished()], finished()),
        ([task(), started()], finished(attempt=2)),
        ([task(), started(), finished()], {**started(), "type": "attempt.heartbeat", "role": None}),
        ([], requested()),
        ([task()], answered("approved")),
        ([task(), requested()], answered("approved", gate="g2")),
        ([task(), requested({"path": "a", "rev": REV})], answered("approved", {"path": "a", "rev": REV.replace("0", "1")})),
        ([task(), requested({"path": "a", "rev": REV})], answered("rejected", {"path": "b", "rev": REV})),
        ([{"type": "run.finished", "outcome": "ok"}], task()),
        ([{"type": "run.finished", "outcome": "ok"}], {"type": "run.finished", "outcome": "ok"}),
    ],
)
def test_what_does_not_follow_is_refused_and_nothing_is_written(workspace: Workspace, runs: Runs, before, event):
    event = {name: value for name, value in event.items() if value is not None}
    head = add(runs, runs.start("Ship", by="human:amy"), *before, by="human:amy")
    data = file_of(workspace, head.run_id).read_bytes()
    with pytest.raises(EventRefusedError):
        add(runs, head, event, by="human:amy")
    assert file_of(workspace, head.run_id).read_bytes() == data


@pytest.mark.parametrize("answer", ["approved", "rejected"])
@pytest.mark.parametrize("by", ["agent:dev", "system"])
def test_only_a_person_answers_a_gate(workspace: Workspace, runs: Runs, answer, by):
    artifact = write_artifact(workspace, "ops/scratch/a", "x")
    head = add(runs, runs.start("Ship", by="human:amy"), task(), requested(artifact))
    with pytest.raises(ForbiddenError):
        add(runs, head, answered(answer, artifact), by=by)
    add(runs, head, answered(answer, artifact), by="human:amy")
    assert gate_of(runs, head.run_id) == answer


def test_an_event_with_a_secret_or_a_transcript_is_refused_and_not_echoed(workspace: Workspace, runs: Runs):
    key = "AKIA" + "IOSFODNN7EXAMQWE"
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    before = file_of(workspace, head.run_id).read_bytes()
    for event in (
        task("t2", title=f"use {key}"),
        {**finished(), "note": key},
        finished("t1", 1, "ok", {"path": key, "rev": REV}),
        {**finished(), "note": "User: a\nAssistant: b\nUser: c"},
    ):
        with pytest.raises(SecretDetectedError) as caught:
            add(runs, head, event)
        assert key not in str(caught.value)
    with pytest.raises(SecretDetectedError):
        runs.start(f"Ship with {key}", by="human:amy")
    assert file_of(workspace, head.run_id).read_bytes() == before
    assert runs.ids() == [head.run_id]


def test_an_event_of_more_than_4096_bytes_is_refused(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())

    def with_path(length: int) -> dict:
        return finished("t1", 1, "ok", {"path": "a" * length, "rev": REV})

    def size_of(length: int) -> int:
        probe = Runs(workspace, None, now=lambda: NOON)
        run = add(probe, probe.start("Ship", by="human:amy"), task(), started())
        add(probe, run, with_path(length))
        return len((workspace.root / f".team/runs/{run.run_id}.jsonl").read_bytes().split(b"\n")[3]) + 1

    room = MAX_EVENT_BYTES - size_of(1) + 1
    with pytest.raises(TooLargeError):
        add(runs, head, with_path(room + 1))
    add(runs, head, with_path(room))
    assert len(file_of(workspace, head.run_id).read_bytes().split(b"\n")[3]) + 1 == MAX_EVENT_BYTES


def test_a_run_that_is_not_there_is_not_made_by_an_append(workspace: Workspace, runs: Runs):
    absent = "20260105T120000Z-ABCDEF"
    with pytest.raises(NotFoundError):
        runs.append(absent, parse_body(task()), by="agent:dev", seq=1, prev=None)
    with pytest.raises(NotFoundError):
        runs.report(absent)
    assert not file_of(workspace, absent).exists()
    for run_id in ("../../MEMORY", "", "x", f"{absent}\n"):
        with pytest.raises(BodyInvalidError):
            runs.report(run_id)


def test_a_link_in_the_place_of_a_run_is_refused(workspace: Workspace, runs: Runs, tmp_path_factory):
    head = runs.start("Ship", by="human:amy")
    outside = tmp_path_factory.mktemp("outside") / "run"
    file_of(workspace, head.run_id).rename(outside)
    file_of(workspace, head.run_id).symlink_to(outside)
    before = outside.read_bytes()
    for call in (lambda: runs.report(head.run_id), lambda: add(runs, head, task()), runs.resume):
        with pytest.raises(UnsafeObjectError):
            call()
    assert outside.read_bytes() == before


# Damage


@pytest.mark.parametrize("torn", [b'{"v":1,"seq":3', b'{"v":1}', b"junk\n", b"\n", b"\0" * 100, b"\xff\n"])
def test_a_torn_last_line_is_left_out_and_cut_off_by_the_next_append(workspace: Workspace, runs: Runs, torn):
    head = add(runs, runs.start("Ship", by="human:amy"), task())
    path = file_of(workspace, head.run_id)
    sound = path.read_bytes()
    path.write_bytes(sound + torn)
    for reader in (runs, Runs(workspace, OPS, now=lambda: NOON)):
        report = reader.report(head.run_id)
        assert (report.torn_tail, report.corrupt, report.seq, report.head) == (True, None, 2, head.head)
        assert path.read_bytes() == sound + torn  # reading changes nothing
    head = add(Runs(workspace, OPS, now=lambda: NOON), head, started())
    assert path.read_bytes().startswith(sound + b'{"v":1,"seq":3,')
    assert path.read_bytes().count(b"\n") == 3
    report = runs.report(head.run_id)
    assert (report.torn_tail, report.corrupt, report.seq) == (False, None, 3)
    [kept] = (workspace.root / ".recalld/quarantine").iterdir()
    assert kept.read_bytes() == torn


def test_a_refused_append_leaves_the_torn_line_alone(workspace: Workspace, runs: Runs):
    head = runs.start("Ship", by="human:amy")
    path = file_of(workspace, head.run_id)
    path.write_bytes(path.read_bytes() + b"torn")
    with pytest.raises(EventRefusedError):
        add(runs, head, started())
    assert path.read_bytes().endswith(b"torn")


def chain(events: list[dict], run_id: str, *, first: int = 1, prev: str | None = None) -> bytes:
    """Lines as another program would write them: well-formed, whatever they say."""
    lines = []
    for seq, event in enumerate(events, start=first):
        envelope = {"v": 1, "seq": seq, "ts": "2026-01-05T12:00:00.000Z", "run_id": run_id, "by": "agent:dev", "prev": prev}
        lines.append(json.dumps(envelope | event).encode())
        prev = hash_of(lines[-1])
    return b"".join(line + b"\n" for line in lines)


DAMAGE = {
    "a gap": (lambda lines, run_id: [lines[0], lines[2]], "line 2: it has the number 3"),
    "twice": (lambda lines, run_id: [lines[0], lines[1], *lines[1:]], "line 3: it has the number 2"),
    "edited": (lambda lines, run_id: [lines[0], lines[1].replace(b"Build", b"Burn!"), lines[2]], "line 3: its prev"),
    "junk": (lambda lines, run_id: [lines[0], b"junk", lines[1]], "line 2: it is no JSON object"),
    "blank": (lambda lines, run_id: [lines[0], b"", lines[1]], "line 2: it is no JSON object"),
    "junk at the end": (lambda lines, run_id: [*lines[:2], b"junk", b"junk"], "line 3: it is no JSON object"),
    "newer": (lambda lines, run_id: [lines[0].replace(b'"v":1', b'"v":2'), *lines[1:]], "line 1: v"),
    "another run's": (
        lambda lines, run_id: [lines[0].replace(run_id.encode(), OTHER.encode()), *lines[1:]],
        "line 1: it belongs",
    ),
    "finish without start": (lambda lines, run_id: by_hand(lines, run_id, finished(attempt=2)), "line 4: attempt 2"),
    "double finish": (lambda lines, run_id: by_hand(lines, run_id, finished(), finished()), "line 5: attempt 1 of 't1' is not"),
    "odd value": (lambda lines, run_id: by_hand(lines, run_id, finished(outcome="odd")), "line 4: "),
    "agent approves": (
        lambda lines, run_id: by_hand(lines, run_id, requested(), answered("approved")),
        "line 5: a gate is answered",
    ),
    "after the end": (
        lambda lines, run_id: by_hand(lines, run_id, {"type": "run.finished", "outcome": "ok"}, task("t2")),
        "line 5: the run is finished",
    ),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGE.values(), ids=DAMAGE.keys())
def test_a_bad_line_inside_makes_the_run_corrupt_and_read_only(workspace: Workspace, runs: Runs, damage, says):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    path = file_of(workspace, head.run_id)
    path.write_bytes(b"".join(line + b"\n" for line in damage(path.read_bytes().split(b"\n")[:-1], head.run_id)))
    data = path.read_bytes()
    for reader in (runs, Runs(workspace, OPS, now=lambda: NOON)):
        report = reader.report(head.run_id)
        assert str(report.corrupt).startswith(says)
        with pytest.raises(RunCorruptError) as caught:
            reader.append(head.run_id, parse_body(task("t9")), by="agent:dev", seq=report.seq + 1, prev=report.head)
        assert caught.value.code == "run_corrupt"
        with pytest.raises(RunCorruptError):
            reader.resume(head.run_id)
    assert path.read_bytes() == data


def by_hand(lines: list[bytes], run_id: str, *events: dict) -> list[bytes]:
    data = chain(list(events), run_id, first=len(lines) + 1, prev=hash_of(lines[-1]))
    return [*lines, *data.split(b"\n")[:-1]]


def test_a_run_that_was_repaired_by_hand_is_whole_again(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task())
    path = file_of(workspace, head.run_id)
    sound = path.read_bytes()
    path.write_bytes(sound + b"junk\njunk\n")
    assert runs.report(head.run_id).corrupt is not None
    path.write_bytes(sound)
    assert add(runs, head, started()).seq == 3


def test_types_and_fields_of_a_newer_program_are_kept_and_reported(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task())
    path = file_of(workspace, head.run_id)
    newer = chain(
        [{"type": "task.renamed", "task": "t1", "to": "t2"}, {**started(), "model": "x"}], head.run_id, first=3, prev=head.head
    )
    path.write_bytes(path.read_bytes() + newer)
    report = runs.report(head.run_id)
    assert report.unknown == ("line 3: type 'task.renamed'", "line 4: fields model of attempt.started")
    assert (report.corrupt, report.tasks[0].status) == (None, "running")
    add(runs, Head(head.run_id, report.seq, str(report.head)), finished())
    assert newer in path.read_bytes()
    assert runs.report(head.run_id).unknown == report.unknown


def test_another_file_in_the_place_of_a_run_is_read_anew(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    path = file_of(workspace, head.run_id)
    path.write_bytes(chain([{"type": "run.started", "goal": "Other", "workspace": "ops"}, task("t9")], head.run_id))
    report = runs.report(head.run_id)
    assert (report.goal, report.seq, [each.task for each in report.tasks]) == ("Other", 2, ["t9"])


def test_an_append_to_another_file_in_the_place_of_a_run_follows_what_stands_there(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    path = file_of(workspace, head.run_id)
    other = chain([{"type": "run.started", "goal": "Other", "workspace": "ops"}, *(task(f"o{n}") for n in range(9))], head.run_id)
    path.write_bytes(other)
    with pytest.raises(RunConflictError) as caught:
        add(runs, head, finished())
    assert caught.value.seq == 10
    add(runs, Head(head.run_id, 10, str(caught.value.head)), task("o9"))
    assert path.read_bytes().startswith(other)
    assert runs.report(head.run_id).seq == 11


@given(st.binary(max_size=400))
def test_no_bytes_at_all_break_the_fold(data):
    state = fold(RunState("20260105T120000Z-ABCDEF"), data)
    assert 0 <= state.size_bytes <= len(data)


def test_reading_a_run_in_pieces_gives_what_reading_it_whole_gives(workspace: Workspace, runs: Runs):
    artifact = write_artifact(workspace, "ops/scratch/a", "x")
    events = [task(), started(), finished("t1", 1, "ok", artifact), task("t2", depends_on=["t1"]), requested(artifact)]
    head = add(runs, runs.start("Ship", by="human:amy"), *events)
    data = file_of(workspace, head.run_id).read_bytes()
    whole = fold(RunState(head.run_id), data)
    assert whole.size_bytes == len(data)
    for cut in range(len(data)):
        part = fold(RunState(head.run_id), data[:cut])
        assert fold(part, data[part.size_bytes :]) == whole


# What counts


def test_a_task_is_done_only_while_its_artifacts_are_as_recorded(workspace: Workspace, runs: Runs):
    artifact = write_artifact(workspace, "ops/scratch/a.py", "one")
    head = add(runs, runs.start("Ship", by="human:amy"), task(), task("t2", depends_on=["t1"]), started())
    assert status_of(runs, head.run_id, "t2") == "waiting"
    head = add(runs, head, finished("t1", 1, "ok", artifact))
    assert (status_of(runs, head.run_id), status_of(runs, head.run_id, "t2")) == ("done", "ready")
    (workspace.root / "ops/scratch/a.py").write_text("two")
    report = runs.report(head.run_id).tasks[0]
    assert (report.status, report.changed, report.next_attempt) == ("needs_recheck", ("ops/scratch/a.py",), 2)
    assert status_of(runs, head.run_id, "t2") == "waiting"
    (workspace.root / "ops/scratch/a.py").unlink()
    assert status_of(runs, head.run_id) == "needs_recheck"
    (workspace.root / "ops/scratch/a.py").symlink_to("/etc/hostname")
    assert status_of(runs, head.run_id) == "needs_recheck"
    (workspace.root / "ops/scratch/a.py").unlink()
    write_artifact(workspace, "ops/scratch/a.py", "one")
    assert status_of(runs, head.run_id) == "done"


def test_an_open_attempt_runs_until_its_lease_ends(runs: Runs, clock: Clock):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started(until=NOON + HOUR))
    assert runs.report(head.run_id).tasks[0].next_attempt is None
    clock.now = NOON + HOUR - timedelta(milliseconds=1)
    assert status_of(runs, head.run_id) == "running"
    clock.now = NOON + HOUR
    assert status_of(runs, head.run_id) == "expired"
    beat = {"type": "attempt.heartbeat", "task": "t1", "attempt": 1, "lease_until": time_text(NOON + 2 * HOUR)}
    add(runs, head, beat)
    assert status_of(runs, head.run_id) == "running"


def test_a_resume_leaves_a_running_attempt_alone(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    data = file_of(workspace, head.run_id).read_bytes()
    resumed = runs.resume()
    assert resumed.run is not None
    assert (resumed.run.run_id, resumed.run.tasks[0].status) == (head.run_id, "running")
    assert file_of(workspace, head.run_id).read_bytes() == data


def test_a_resume_interrupts_what_expired_before_the_next_attempt(workspace: Workspace, runs: Runs, clock: Clock):
    events = [task(), task("t2"), task("t3"), started(), started("t2"), started("t3", until=NOON + 9 * HOUR)]
    head = add(runs, runs.start("Ship", by="human:amy"), *events)
    clock.now = NOON + HOUR
    run = runs.resume().run
    assert run is not None
    assert [(each.status, each.outcome, each.next_attempt) for each in run.tasks] == [
        ("ready", "interrupted", 2),
        ("ready", "interrupted", 2),
        ("running", None, None),
    ]
    added = [json.loads(line) for line in file_of(workspace, head.run_id).read_bytes().split(b"\n")[7:-1]]
    assert [(line["seq"], line["by"], line["task"], line["outcome"]) for line in added] == [
        (8, "system", "t1", "interrupted"),
        (9, "system", "t2", "interrupted"),
    ]
    again = runs.resume().run
    assert again is not None
    assert again.seq == 9
    add(runs, Head(run.run_id, run.seq, str(run.head)), started(attempt=2, until=NOON + 3 * HOUR))


def test_a_resume_cuts_a_torn_line_off(workspace: Workspace, runs: Runs):
    head = runs.start("Ship", by="human:amy")
    path = file_of(workspace, head.run_id)
    sound = path.read_bytes()
    path.write_bytes(sound + b"{")
    run = runs.resume().run
    assert run is not None
    assert not run.torn_tail
    assert path.read_bytes() == sound


def test_without_a_checkpoint_there_is_a_fresh_start(runs: Runs, workspace: Workspace):
    assert (runs.resume().run, runs.resume().unfinished) == (None, ())
    head = add(runs, runs.start("Ship", by="human:amy"), {"type": "run.finished", "outcome": "ok"})
    assert runs.resume().run is None
    with pytest.raises(EventRefusedError, match="finished"):
        runs.resume(head.run_id)
    file_of(workspace, "20260105T120001Z-ABCDEF").touch()  # a start that was killed before its first line
    assert (runs.resume().run, runs.unfinished()) == (None, [])


def test_of_two_unfinished_runs_both_are_listed_and_none_is_chosen(workspace: Workspace, runs: Runs, clock: Clock):
    one = add(runs, runs.start("One", by="human:amy"), task(), started())
    clock.now = NOON + 2 * HOUR
    two = runs.start("Two", by="human:amy")
    data = file_of(workspace, one.run_id).read_bytes()
    resumed = runs.resume()
    assert resumed.run is None
    assert [run.run_id for run in resumed.unfinished] == [two.run_id, one.run_id]
    assert file_of(workspace, one.run_id).read_bytes() == data
    chosen = runs.resume(one.run_id)
    assert chosen.run is not None
    assert chosen.run.tasks[0].outcome == "interrupted"


def test_a_corrupt_run_does_not_stand_in_the_way_of_a_resume(workspace: Workspace, runs: Runs, clock: Clock):
    bad = runs.start("Bad", by="human:amy")
    path = file_of(workspace, bad.run_id)
    path.write_bytes(path.read_bytes() + b"junk\njunk\n")
    clock.now += HOUR
    good = runs.start("Good", by="human:amy")
    resumed = runs.resume()
    assert resumed.run is not None
    assert (resumed.run.run_id, resumed.corrupt) == (good.run_id, (bad.run_id,))


def test_after_the_last_allowed_attempt_a_task_is_blocked(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task())
    for attempt, outcome in enumerate(["failed", "cancelled", "interrupted"], start=1):
        assert runs.report(head.run_id).tasks[0].next_attempt == attempt
        head = add(runs, head, started(attempt=attempt), finished("t1", attempt, outcome))
    report = runs.report(head.run_id).tasks[0]
    assert (report.status, report.attempts, report.next_attempt) == ("blocked", 3, None)
    assert Runs(workspace, OPS, max_attempts=4).report(head.run_id).tasks[0].status == "ready"


def test_an_approval_is_stale_once_a_file_is_another(workspace: Workspace, runs: Runs):
    one = write_artifact(workspace, "ops/scratch/a", "one")
    two = write_artifact(workspace, "ops/scratch/b", "two")
    head = add(runs, runs.start("Ship", by="human:amy"), task(), requested(one, two))
    assert gate_of(runs, head.run_id) == "requested"
    head = add(runs, head, answered("approved", one, two), by="human:amy")
    gate = runs.report(head.run_id).gates[0]
    assert (gate.status, gate.by, gate.changed) == ("approved", "human:amy", ())
    changed = write_artifact(workspace, "ops/scratch/b", "three")
    gate = runs.report(head.run_id).gates[0]
    assert (gate.status, gate.changed) == ("approval_stale", ("ops/scratch/b",))
    with pytest.raises(EventRefusedError, match="not part of the request"):
        add(runs, head, answered("approved", one, changed), by="human:amy")
    head = add(runs, head, requested(one, changed))
    assert gate_of(runs, head.run_id) == "requested"
    head = add(runs, head, answered("approved", one, changed), by="human:amy")
    assert gate_of(runs, head.run_id) == "approved"
    (workspace.root / "ops/scratch/a").unlink()
    assert gate_of(runs, head.run_id) == "approval_stale"


def test_an_approval_of_a_part_is_no_approval(workspace: Workspace, runs: Runs):
    one = write_artifact(workspace, "ops/scratch/a", "one")
    two = write_artifact(workspace, "ops/scratch/b", "two")
    head = add(runs, runs.start("Ship", by="human:amy"), task(), requested(one, two))
    add(runs, head, answered("approved", one), by="human:amy")
    assert gate_of(runs, head.run_id) == "requested"


def test_runs_are_listed_newest_first_in_pages(workspace: Workspace, runs: Runs, clock: Clock):
    ids = []
    for _ in range(4):
        ids.append(runs.start("Ship", by="human:amy").run_id)
        clock.now += HOUR
    (workspace.root / "ops/.team/runs/notes.txt").write_text("x")
    assert [run.run_id for run in runs.page(limit=3)] == ids[:0:-1]
    assert [run.run_id for run in runs.page(before=ids[1])] == ids[:1]


# Several processes


def _add_tasks(root: Path, run_id: str, writer: int, count: int) -> None:
    runs = Runs(open_workspace(root), OPS)
    for number in range(count):
        while True:
            report = runs.report(run_id)
            try:
                body = parse_body(task(f"w{writer}-{number}"))
                runs.append(run_id, body, by="agent:dev", seq=report.seq + 1, prev=report.head)
            except RunConflictError:
                continue
            break


def test_processes_that_append_to_one_run_never_lose_or_tear_an_event(workspace: Workspace, runs: Runs):
    head = runs.start("Ship", by="human:amy")
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_add_tasks, args=(workspace.root, head.run_id, writer, 20)) for writer in range(3)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * 3
    report = Runs(workspace, OPS).report(head.run_id)
    assert (report.seq, report.corrupt, report.torn_tail) == (61, None, False)
    assert {each.task for each in report.tasks} == {f"w{writer}-{number}" for writer in range(3) for number in range(20)}
    assert runs.report(head.run_id) == report


_VICTIM = """
import sys
from itertools import count
from pathlib import Path
from persistence.teams.run_events import parse_body
from persistence.runs import Runs
from persistence.workspace import open_workspace, parse_channel_id
runs = Runs(open_workspace(Path(sys.argv[1])), parse_channel_id("ops"))
resumed = runs.resume().run
for number in count():
    report = runs.report(resumed.run_id)
    name = f"r{sys.argv[2]}-{number}"
    body = parse_body({"type": "task.added", "task": name, "role": "dev", "title": "x"})
    runs.append(resumed.run_id, body, by="agent:dev", seq=report.seq + 1, prev=report.head)
    sys.stdout.write(name + "\\n")
    sys.stdout.flush()
"""


def test_every_acknowledged_event_survives_kill_9(workspace: Workspace, runs: Runs):
    head = runs.start("Ship", by="human:amy")
    acked: list[str] = []
    for round_ in range(5):
        command = [sys.executable, "-c", _VICTIM, str(workspace.root), str(round_)]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2])
        first = b"".join(victim.stdout.readline() for _ in range(5))
        time.sleep(0.02 + round_ * 0.03)
        victim.send_signal(signal.SIGKILL)
        out, _ = victim.communicate()
        acked += (first + out).decode().split("\n")[:-1]
    report = runs.report(head.run_id)
    assert report.corrupt is None
    names = [each.task for each in report.tasks]
    assert len(acked) >= 25
    assert set(acked) <= set(names)
    assert len(names) <= len(acked) + 5


def test_appending_to_a_long_run_reads_only_what_is_new(workspace: Workspace, runs: Runs):
    head = add(runs, runs.start("Ship", by="human:amy"), task(), started())
    path = file_of(workspace, head.run_id)
    beats = [
        {"type": "attempt.heartbeat", "task": "t1", "attempt": 1, "lease_until": time_text(NOON + HOUR * (1 + number))}
        for number in range(3000)
    ]
    path.write_bytes(path.read_bytes() + chain(beats, head.run_id, first=4, prev=head.head))
    report = runs.report(head.run_id)
    assert (report.seq, report.corrupt) == (3003, None)
    head = Head(head.run_id, report.seq, str(report.head))

    def read_bytes(reader: Runs) -> int:
        before = _bytes_read()
        reader.append(head.run_id, parse_body(finished()), by="agent:dev", seq=head.seq + 1, prev=head.head)
        return _bytes_read() - before

    data = path.read_bytes()
    warm = read_bytes(runs)
    path.write_bytes(data)
    cold = read_bytes(Runs(workspace, OPS, now=lambda: NOON))
    assert warm < 20_000 < len(data) < cold


def _bytes_read() -> int:
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().split("\n")[:-1])
    return int(fields["rchar"])


def test_every_refusal_has_a_code_of_its_own():
    leaves = [
        RunConflictError,
        EventRefusedError,
        RunCorruptError,
        ForbiddenError,
        BodyInvalidError,
        TooLargeError,
        NotFoundError,
    ]
    assert len({leaf.code for leaf in leaves} | {PersistenceError.code}) == len(leaves) + 1
