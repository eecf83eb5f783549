"""Several processes write one team's memory, compact it and are killed: each acknowledged entry is there, once, whole."""

import multiprocessing
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from persistence.errors import StoreBusyError
from persistence.lines import held_lines
from persistence.team import TeamMemory
from persistence.teams.log import parse_entries
from persistence.versions import Author
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")
AMY = Author("user:amy")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


def notes(workspace: Workspace, role: str) -> list[str]:
    """What every entry of a role says, from its archives and its log."""
    folder = workspace.root / "ops/.team/memory"
    files = [*sorted(folder.glob(f"archive/{role}-*.md")), folder / f"log/{role}.md"]
    entries = [entry for path in files if path.exists() for entry in parse_entries(path.read_bytes())]
    assert all((entry.stage, entry.artifact, entry.next_step) == ("note", None, None) for entry in entries)
    return [entry.done for entry in entries]


def _remember(root: Path, role: str, writer: int, count: int) -> None:
    team = TeamMemory(open_workspace(root), OPS)
    for number in range(count):
        team.remember(role, f"{writer}:{number}", author=AMY)


def run_all(*calls) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=call, args=args) for call, *args in calls]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * len(processes)


def test_two_roles_remember_at_once(workspace: Workspace):
    run_all((_remember, workspace.root, "dev", 0, 10), (_remember, workspace.root, "analyst", 0, 10))
    assert notes(workspace, "dev") == notes(workspace, "analyst") == [f"0:{number}" for number in range(10)]


def test_one_role_remembers_in_many_processes_at_once(workspace: Workspace):
    run_all(*((_remember, workspace.root, "dev", writer, 10) for writer in range(5)))
    found = notes(workspace, "dev")
    assert sorted(found) == sorted(f"{writer}:{number}" for writer in range(5) for number in range(10))
    for writer in range(5):
        assert [note for note in found if note.startswith(f"{writer}:")] == [f"{writer}:{number}" for number in range(10)]
    assert len((workspace.root / "ops/.team/memory/log/dev.md").read_bytes().split(b"\n")) == 2 + 50 + 1


def test_many_threads_of_one_process_remember_at_once(workspace: Workspace):
    team = TeamMemory(workspace, OPS)
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(lambda number: team.remember("dev", str(number), author=AMY), range(50)))
    assert sorted(notes(workspace, "dev"), key=int) == [str(number) for number in range(50)]


def _compact_often(root: Path, times: int) -> None:
    team = TeamMemory(open_workspace(root), OPS)
    for _ in range(times):
        team.compact(author=AMY)
        time.sleep(0.01)


def test_nothing_remembered_during_compaction_is_lost_or_repeated(workspace: Workspace):
    TeamMemory(workspace, OPS).init(author=AMY)
    run_all(
        (_compact_often, workspace.root, 25),
        (_compact_often, workspace.root, 25),
        (_remember, workspace.root, "dev", 0, 80),
        (_remember, workspace.root, "dev", 1, 80),
    )
    TeamMemory(workspace, OPS).compact(author=AMY)
    assert sorted(notes(workspace, "dev")) == sorted(f"{writer}:{number}" for writer in range(2) for number in range(80))
    assert len(parse_entries((workspace.root / "ops/.team/memory/log/dev.md").read_bytes())) == 40


def test_a_log_that_is_held_is_busy_and_nothing_is_written(workspace: Workspace):
    team = TeamMemory(workspace, OPS)
    team.remember("dev", "there", author=AMY)
    with held_lines(workspace.root, "ops/.team/memory/log/dev.md"):
        with pytest.raises(StoreBusyError):
            team.remember("dev", "late", author=AMY)
        team.remember("analyst", "another log is free", author=AMY)
    assert notes(workspace, "dev") == ["there"]


def _decide(root: Path, writer: int) -> None:
    team = TeamMemory(open_workspace(root), OPS, now=lambda: datetime(2026, 1, 5, tzinfo=UTC))
    for number in range(5):
        team.decide("dev", "Same", body=f"{writer}:{number}", author=AMY)


def test_decisions_made_at_once_get_files_of_their_own(workspace: Workspace):
    run_all(*((_decide, workspace.root, writer) for writer in range(3)))
    decisions = TeamMemory(workspace, OPS).decisions()
    assert sorted(decision.body.strip() for decision in decisions) == sorted(f"{w}:{n}" for w in range(3) for n in range(5))
    assert {decision.id for decision in decisions} == {"2026-01-05-same", *(f"2026-01-05-same-{n}" for n in range(2, 16))}


_VICTIM = """
import sys
from itertools import count
from pathlib import Path
from persistence.team import TeamMemory
from persistence.versions import Author
from persistence.workspace import open_workspace, parse_channel_id
team = TeamMemory(open_workspace(Path(sys.argv[1])), parse_channel_id("ops"))
amy = Author("user:amy")
for number in count():
    text = f"{sys.argv[2]}:{number}"
    if number % 5 == 4:
        team.compact(author=amy)
        team.decide("dev", "A choice", body=text, author=amy)
    team.remember("dev", text, author=amy)
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
"""


def test_every_acknowledged_note_survives_kill_9_exactly_once(workspace: Workspace):
    acked: list[str] = []
    for round_ in range(12):
        command = [sys.executable, "-c", _VICTIM, str(workspace.root), str(round_)]
        victim = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        first = b"".join(victim.stdout.readline() for _ in range(6))  # so that there is overflow, however slow the machine is
        time.sleep(0.01 + round_ * 0.017)
        victim.send_signal(signal.SIGKILL)
        out, _ = victim.communicate()
        acked += (first + out).decode().split("\n")[:-1]
    team = TeamMemory(workspace, OPS)
    assert team.compact(author=AMY).complete
    found = notes(workspace, "dev")
    assert len(acked) >= 72
    assert len(set(found)) == len(found)
    assert set(acked) <= set(found)
    assert len(found) <= len(acked) + 12  # at most the one that was being written
    for decision in team.decisions(limit=1000):
        assert (decision.role, decision.title) == ("dev", "A choice")
        assert decision.body.strip() in {*found, *(f"{note.split(':')[0]}:{int(note.split(':')[1]) + 1}" for note in found)}
