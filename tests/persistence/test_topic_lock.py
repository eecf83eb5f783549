"""The lock of a topic directory: waits are bounded, nothing is written without it, other tools' `.lock` files are honoured."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from persistence.errors import StoreBusyError
from persistence.files import locked
from persistence.topic_store import TopicStore
from persistence.topics.change import TopicChange, changing
from persistence.topics.file import TopicFile
from persistence.topics.folder import TopicFolder
from persistence.topics.lock import LockWaits, Token, directory_locked, is_abandoned, is_process
from persistence.workspace import Workspace, open_workspace
from tests.persistence.topic_samples import AMY, leftovers, tree

DEAD = 999_999_99
HOST = socket.gethostname()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir()
    return path


SHORT = LockWaits(0.1, 0.1, 0.05)


def shared_store(workspace: Workspace, shared: Path, waits: LockWaits = SHORT) -> TopicStore:
    return TopicStore(workspace, None, shared=shared, waits=waits)


def put_token(shared: Path, text: str, *, age_s: float) -> Path:
    path = shared / ".lock"
    path.write_text(text)
    then = time.time() - age_s
    os.utime(path, (then, then))
    return path


def hold(workspace: Workspace, seconds: float) -> subprocess.Popen[str]:
    """Another real process that holds the directory's lock."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from persistence.files import locked; from persistence.workspace import Workspace\n"
        "with locked(Path(sys.argv[1]), 'memory/MEMORY.md', Workspace.lock_of('memory/MEMORY.md')):\n"
        "    print('held', flush=True); time.sleep(float(sys.argv[2]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(workspace.root), str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_a_lock_that_another_process_holds_briefly_is_waited_for(workspace: Workspace):
    with hold(workspace, 0.25) as process:
        started = time.monotonic()
        TopicStore(workspace, None).write("A", "x", "s", author=AMY)
        assert 0.05 < time.monotonic() - started < 2
        process.wait()


def test_a_lock_that_stays_held_is_given_up_after_half_a_second_and_nothing_is_written(workspace: Workspace):
    with hold(workspace, 30) as process:
        started = time.monotonic()
        with pytest.raises(StoreBusyError):
            TopicStore(workspace, None).write("A", "x", "s", author=AMY)
        assert 0.4 < time.monotonic() - started < 1.5
        assert not (workspace.root / "memory").exists()
        process.kill()
    TopicStore(workspace, None).write("A", "x", "s", author=AMY)


def test_the_scopes_do_not_wait_for_each_other_and_reading_waits_for_nobody(workspace: Workspace):
    TopicStore(workspace, None).write("A", "x", "s", author=AMY)
    with directory_locked(TopicFolder.of(workspace, None), LockWaits()):
        assert TopicStore(workspace, None).read("A").text == "x\n"
        assert TopicStore(workspace, None).search("x") != []
        TopicStore(workspace, "ops").write("B", "y", "s", author=AMY)


def test_a_shared_directory_is_waited_for_twice_with_a_pause(workspace: Workspace, shared: Path):
    put_token(shared, f"{os.getpid()}\t1\tabc", age_s=0)
    started = time.monotonic()
    with pytest.raises(StoreBusyError, match="another tool"):
        shared_store(workspace, shared, LockWaits(shared_s=0.2, shared_pause_s=0.3)).write("A", "x", "s", author=AMY)
    assert 0.7 <= time.monotonic() - started < 2.5
    assert sorted(tree(shared)) == [".lock"]
    assert (LockWaits().own_s, LockWaits().shared_s, LockWaits().shared_pause_s) == (0.5, 2.0, 1.0)


def test_a_lock_file_of_another_tool_is_waited_for(workspace: Workspace, shared: Path):
    path = put_token(shared, f"{os.getpid()}\t1\tabc", age_s=0)
    threading.Timer(0.3, path.unlink).start()
    shared_store(workspace, shared, LockWaits(shared_s=2)).write("A", "x", "s", author=AMY)
    assert leftovers(shared) == []


def test_the_lock_file_is_there_while_a_shared_directory_is_changed_and_says_who_holds_it(workspace: Workspace, shared: Path):
    with directory_locked(TopicFolder(Workspace(shared), "", shared=True), LockWaits()):
        pid, millis, token, host = (shared / ".lock").read_text().split("\t")
        assert (int(pid), host) == (os.getpid(), HOST)
        assert abs(int(millis) / 1000 - time.time()) < 60
        assert len(token) == 16
    assert not (shared / ".lock").exists()


ABANDONED = [
    ("a tool's, dead, old", f"{DEAD}\t1\tabc", 61, True),
    ("a tool's, dead, young", f"{DEAD}\t1\tabc", 30, False),
    ("a tool's, alive, old", f"{os.getpid()}\t1\tabc", 600, False),
    ("unreadable, old", "?", 61, True),
    ("empty, young", "", 59, False),
    ("empty, old", "", 61, True),
    ("ours of this host, dead", f"{DEAD}\t1\tabc\t{HOST}", 0, True),
    ("ours of this host, alive", f"{os.getpid()}\t1\tabc\t{HOST}", 59, False),
    ("ours of another host, young", f"{DEAD}\t1\tabc\tother", 59, False),
    ("ours of another host, heartbeat stale", f"{os.getpid()}\t1\tabc\tother", 61, True),
    ("a number that is no process", "0\t1\tabc", 59, False),
]


@pytest.mark.parametrize(("text", "age_s", "gone"), [case[1:] for case in ABANDONED], ids=[case[0] for case in ABANDONED])
def test_a_lock_file_is_taken_only_from_a_holder_that_is_surely_gone(workspace: Workspace, shared: Path, text, age_s, gone):
    path = put_token(shared, text, age_s=age_s)
    store = shared_store(workspace, shared)
    if gone:
        store.write("A", "x", "s", author=AMY)
        assert leftovers(shared) == []
    else:
        with pytest.raises(StoreBusyError):
            store.write("A", "x", "s", author=AMY)
        assert path.read_text() == text
        assert not (shared / "a.md").exists()


def test_a_process_of_another_user_counts_as_alive_and_a_dead_one_not():
    pid = os.fork()
    if pid == 0:  # as somebody who may not signal process 1
        try:
            if os.geteuid() == 0:
                os.setuid(65534)
            os._exit(0 if is_process(1) and not is_process(DEAD) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_number_that_no_process_can_have_is_none():
    assert not is_abandoned(f"{'9' * 400}\t1\tabc", age_s=10, host=HOST, is_alive=lambda _: False)
    assert is_abandoned(f"{'9' * 400}\t1\tabc", age_s=61, host=HOST, is_alive=lambda _: True)


@pytest.mark.timeout(20)
def test_a_lock_that_is_no_regular_file_is_never_taken(workspace: Workspace, shared: Path):
    (shared / ".lock").mkdir()
    os.utime(shared / ".lock", (1, 1))
    with pytest.raises(StoreBusyError):
        shared_store(workspace, shared).write("A", "x", "s", author=AMY)
    assert (shared / ".lock").is_dir()


def test_a_lock_file_that_is_replaced_while_it_is_judged_stays(workspace: Workspace, shared: Path):
    put_token(shared, f"{DEAD}\t1\tabc", age_s=100)
    live = f"{os.getpid()}\t1\tlive"

    def is_alive(pid: int) -> bool:
        if pid == DEAD:  # its lock is judged right now; somebody takes it over
            (shared / "new").write_text(live)
            (shared / "new").replace(shared / ".lock")
        return pid != DEAD

    with locked(shared, "MEMORY.md", Workspace.lock_of("MEMORY.md")) as held, pytest.raises(StoreBusyError):
        Token(TopicFolder(Workspace(shared), "", shared=True), is_alive=is_alive).acquire(time.monotonic() + 0.1, held)
    assert (shared / ".lock").read_text() == live


def test_releasing_leaves_a_lock_file_that_is_not_ours(workspace: Workspace, shared: Path):
    folder = TopicFolder(Workspace(shared), "", shared=True)
    Token(folder).release()
    with locked(shared, "MEMORY.md", Workspace.lock_of("MEMORY.md")) as held:
        first, second = Token(folder), Token(folder)
        first.acquire(time.monotonic() + 1, held)
        (shared / ".lock").unlink()
        second.acquire(time.monotonic() + 1, held)
        first.release()
        second.prove()
        with pytest.raises(StoreBusyError):
            first.prove()
        second.release()
    assert not (shared / ".lock").exists()


def test_a_writer_whose_lock_file_was_taken_does_not_publish(workspace: Workspace, shared: Path):
    store = shared_store(workspace, shared)
    store.write("A", "x", "s", author=AMY)
    folder = TopicFolder(Workspace(shared), "", shared=True)
    before = (shared / "MEMORY.md").read_bytes()

    topic = (shared / "a.md").read_bytes()

    def steal_and(write: Callable[[TopicChange], object]) -> None:
        with changing(folder, LockWaits(), author=AMY) as change:
            (shared / ".lock").write_text("1\t1\tthief")
            write(change)

    def write_topic(change: TopicChange) -> None:
        with change.topic_locked("a.md") as held:
            change.write_topic("a.md", TopicFile(None, "stolen"), held)

    for write in (write_topic, lambda change: change.write_index([]), lambda change: change.write_removed([], "a.md")):
        with pytest.raises(StoreBusyError):
            steal_and(write)
        assert (shared / "MEMORY.md").read_bytes() == before
        assert (shared / "a.md").read_bytes() == topic
        assert not (shared / ".ocl-removed").exists()
        assert (shared / ".lock").read_text() == "1\t1\tthief"
        (shared / ".lock").unlink()
