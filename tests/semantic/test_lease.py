"""The indexer's lease, with real processes."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from semantic.errors import IndexBusyError, IndexFaultError
from semantic.lease import Lease, lease_of

HOLD = """
import sys, time, pathlib
from semantic.lease import Lease
with Lease(pathlib.Path(sys.argv[1])).held(timeout_s=5) as generation:
    print(generation, flush=True)
    time.sleep(60)
"""

COUNT = """
import sys, pathlib
from semantic.lease import Lease
lease, counter = Lease(pathlib.Path(sys.argv[1])), pathlib.Path(sys.argv[2])
for _ in range(50):
    with lease.held(timeout_s=30) as generation:
        number = int(counter.read_text())
        lease.check()
        counter.write_text(str(number + 1))
    print(generation)
"""


def hold(path: Path) -> tuple[subprocess.Popen[str], int]:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    return holder, int(holder.stdout.readline())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_while_another_process_holds_it_the_lease_is_refused(tmp_path):
    holder, _ = hold(tmp_path / "lease")
    try:
        started = time.monotonic()
        with pytest.raises(IndexBusyError), Lease(tmp_path / "lease").held(timeout_s=0.3):
            pass
        assert 0.25 < time.monotonic() - started < 3
    finally:
        end(holder)


def test_a_killed_holder_leaves_the_lease_free_with_a_newer_generation(tmp_path):
    holder, generation = hold(tmp_path / "lease")
    end(holder)
    with Lease(tmp_path / "lease").held(timeout_s=1) as mine:
        assert mine == generation + 1


def test_processes_take_turns_and_no_generation_is_given_twice(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    command = [sys.executable, "-c", COUNT, str(tmp_path / "lease"), str(counter)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    generations = [int(line) for process in processes for line in process.communicate(timeout=120)[0].split()]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert counter.read_text() == "150"
    assert sorted(generations) == list(range(1, 151))


def test_two_leases_in_one_process_exclude_each_other(tmp_path):
    with Lease(tmp_path / "lease").held(timeout_s=1):
        with pytest.raises(IndexBusyError), Lease(tmp_path / "lease").held(timeout_s=0.1):
            pass
        same = Lease(tmp_path / "lease")
    with same.held(timeout_s=1):
        same.check()


def test_a_commit_needs_the_lease(tmp_path):
    lease = Lease(tmp_path / "lease")
    with pytest.raises(IndexBusyError):
        lease.check()
    with lease.held(timeout_s=1):
        lease.check()
    with pytest.raises(IndexBusyError):
        lease.check()


def test_a_holder_that_was_overtaken_may_not_commit(tmp_path):
    lease = Lease(tmp_path / "lease")
    with lease.held(timeout_s=1) as generation:
        (tmp_path / f"lease.gen-{generation + 1}").touch()  # what another host makes that took the lock which we lost
        with pytest.raises(IndexBusyError):
            lease.check()


def test_a_holder_whose_folder_was_deleted_may_not_commit(tmp_path):
    folder = tmp_path / "index"
    lease = Lease(folder / "lease")
    with lease.held(timeout_s=1):
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        with pytest.raises(IndexBusyError):
            lease.check()
    with lease.held(timeout_s=1):
        lease.check()


def test_only_the_newest_generations_are_kept(tmp_path):
    lease = Lease(tmp_path / "lease")
    for _ in range(10):
        with lease.held(timeout_s=1):
            pass
    assert sorted(path.name for path in tmp_path.glob("lease.gen-*")) == ["lease.gen-10", "lease.gen-8", "lease.gen-9"]


def test_a_folder_that_can_t_hold_the_lease_is_a_fault_with_its_reason(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexFaultError, match="lease"), Lease(tmp_path / "file" / "lease").held(timeout_s=1):
        pass


def test_the_lease_is_with_the_index_or_on_the_volume(tmp_path):
    with lease_of(tmp_path, str(tmp_path / "index")).held(timeout_s=1), lease_of(tmp_path, "s3://bucket/index").held(timeout_s=1):
        assert (tmp_path / "index" / "indexer.lock").is_file()
        assert list((tmp_path / ".recalld" / "locks").glob("indexer-*.lock"))
