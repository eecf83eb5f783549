"""Compaction of team memory: what goes to the archive, what of the index goes, when it is refused, how it is repeated."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence.errors import AgentsActiveError, StoreFaultError
from persistence.team import TeamMemory
from persistence.teams.compaction import IndexCompaction, LogCompaction
from persistence.teams.log import ENTRY_LIMIT, add_batch, parse_entries, split_overflow, without_duplicates
from persistence.teams.run_events import parse_body, time_text
from persistence.versions import Author, list_versions, restore_version
from persistence.workspace import Workspace, open_workspace, parse_channel_id

OPS = parse_channel_id("ops")
AMY = Author("user:amy")
NOON = datetime(2026, 3, 5, 12, tzinfo=UTC)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return open_workspace(tmp_path)


@pytest.fixture
def team(workspace: Workspace) -> TeamMemory:
    return TeamMemory(workspace, OPS, now=lambda: NOON)


def memory(workspace: Workspace) -> Path:
    return workspace.root / "ops/.team/memory"


def entry(number: int, day: str = "2026-03-01") -> bytes:
    return f"- {day} | note | entry {number} | - | -".encode()


def write_log(workspace: Workspace, lines: list[bytes], role: str = "dev") -> Path:
    path = memory(workspace) / f"log/{role}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"# Log: {role}\n\n".encode() + b"".join(line + b"\n" for line in lines))
    return path


def write_index(workspace: Workspace, text: str) -> Path:
    path = memory(workspace) / "INDEX.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def archives(workspace: Workspace) -> dict[str, list[bytes]]:
    """The entries of each archive file."""
    folder = memory(workspace) / "archive"
    files = sorted(folder.iterdir()) if folder.exists() else []
    return {path.name: [line for line in path.read_bytes().split(b"\n") if line.startswith(b"- ")] for path in files}


def files_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def test_the_newest_forty_entries_stay_and_the_rest_goes_to_the_archive_of_its_month(workspace: Workspace, team: TeamMemory):
    log = write_log(workspace, [entry(0, "2026-01-31"), *(entry(number) for number in range(1, 41))])
    result = team.compact(author=AMY)
    assert result.roles["dev"] == LogCompaction(kept=40, archived=1)
    assert result.complete
    assert log.read_bytes() == b"# Log: dev\n\n" + b"".join(entry(number) + b"\n" for number in range(1, 41))
    assert archives(workspace) == {"dev-2026-01.md": [entry(0, "2026-01-31")]}


def test_the_order_of_the_file_says_what_is_newest_not_the_dates(workspace: Workspace, team: TeamMemory):
    write_log(workspace, [entry(0, "2030-12-01"), *(entry(number) for number in range(1, 41))])
    team.compact(author=AMY)
    assert archives(workspace) == {"dev-2030-12.md": [entry(0, "2030-12-01")]}


def test_overflow_of_two_months_goes_to_two_archives(workspace: Workspace, team: TeamMemory):
    overflow = [entry(0, "2026-01-31"), entry(1, "2026-02-01"), entry(2, "2026-01-30")]
    write_log(workspace, [*overflow, *(entry(number) for number in range(3, 43))])
    assert team.compact(author=AMY).roles["dev"].archived == 3
    assert archives(workspace) == {"dev-2026-01.md": [overflow[0], overflow[2]], "dev-2026-02.md": [overflow[1]]}


def test_lines_that_are_no_entries_stay_where_they_are_and_do_not_count(workspace: Workspace, team: TeamMemory):
    prose = [b"## Old", b"some prose", b"- a bullet without a date", b"", b"  continued"]
    entries = [entry(number) for number in range(42)]
    log = write_log(workspace, [*prose[:2], *entries[:2], *prose[2:], *entries[2:]])
    team.compact(author=AMY)
    assert log.read_bytes() == b"# Log: dev\n\n" + b"".join(line + b"\n" for line in [*prose, *entries[2:]])


def test_compacting_twice_repeats_no_archived_line(workspace: Workspace, team: TeamMemory):
    write_log(workspace, [entry(number) for number in range(45)])
    write_index(workspace, "- a\n- a\n")
    team.compact(author=AMY)
    before = files_of(memory(workspace))
    result = team.compact(author=AMY)
    assert files_of(memory(workspace)) == before
    assert result.roles["dev"] == LogCompaction(kept=40, archived=0)


def test_later_overflow_is_added_to_the_archive_of_its_month(workspace: Workspace, team: TeamMemory):
    log = write_log(workspace, [entry(number) for number in range(45)])
    team.compact(author=AMY)
    with log.open("ab") as file:
        file.writelines(entry(number) + b"\n" for number in range(45, 52))
    team.compact(author=AMY)
    assert archives(workspace) == {"dev-2026-03.md": [entry(number) for number in range(12)]}


@contextmanager
def no_file_over(size_bytes: int) -> Iterator[None]:
    """The file system refuses to let any file of this process grow beyond a size, as a quota would."""
    old_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    old_handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, old_limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old_limit)
        signal.signal(signal.SIGXFSZ, old_handler)


def long_entry(number: int) -> bytes:
    return entry(number).replace(b"entry", b"a rather long entry " + b"x" * 200)


@pytest.mark.parametrize("appended", [0, 3])
def test_a_compaction_that_failed_half_way_ends_the_same_when_it_is_run_again(tmp_path_factory, appended):
    finals = []
    for fails in (False, True):
        workspace = open_workspace(tmp_path_factory.mktemp("w"))
        team = TeamMemory(workspace, OPS, now=lambda: NOON)
        log = write_log(workspace, [long_entry(number) for number in range(43)])
        if fails:
            before = log.read_bytes()
            with no_file_over(6000), pytest.raises(StoreFaultError):  # an archive of 3 lines fits, the log does not
                team.compact(author=AMY)
            assert archives(workspace) == {"dev-2026-03.md": [long_entry(number) for number in range(3)]}
            assert log.read_bytes() == before
        with log.open("ab") as file:
            file.writelines(long_entry(number) + b"\n" for number in range(43, 43 + appended))
        assert team.compact(author=AMY).complete
        finals.append((archives(workspace), log.read_bytes()))
    assert finals[0] == finals[1]
    assert finals[0][0] == {"dev-2026-03.md": [long_entry(number) for number in range(3 + appended)]}


def test_a_log_that_was_restored_to_before_a_compaction_is_not_archived_twice(workspace: Workspace, team: TeamMemory):
    write_log(workspace, [entry(number) for number in range(45)])
    team.compact(author=AMY)
    [version] = list_versions(workspace, "ops/.team/memory/log/dev.md")
    restore_version(workspace, version.name, version.id, author=AMY)
    team.compact(author=AMY)
    assert archives(workspace) == {"dev-2026-03.md": [entry(number) for number in range(5)]}


STEP = st.one_of(st.integers(1, 60), st.sampled_from(["compact", "die before the archives", "die before the log"]))


@settings(deadline=None)
@given(st.lists(STEP, max_size=12), st.integers(1, 3))
def test_whatever_is_appended_and_wherever_compaction_dies_each_entry_is_kept_once(steps, months):
    """A model of the files: a compaction that dies leaves some archives written and the log as it was."""
    log, stores, made = b"# Log: dev\n\n", {}, []

    def compact(*, dies_after: int | None) -> bytes:
        overflow = split_overflow(log)
        for done, (month, lines) in enumerate(overflow.moved.items()):
            if dies_after is not None and done >= dies_after:
                return log
            stores[month] = add_batch(stores.get(month, b""), lines, title=month)
        return log if dies_after is not None else overflow.kept

    for step in [*steps, "compact"]:
        if isinstance(step, int):
            new = [entry(len(made) + i, f"2026-0{(len(made) + i) % months + 1}-01") for i in range(step)]
            made += new
            log += b"".join(line + b"\n" for line in new)
        else:
            log = compact(dies_after={"compact": None, "die before the archives": 1, "die before the log": 99}[step])
    kept = [line for text in (*stores.values(), log) for line in text.split(b"\n") if line.startswith(b"- ")]
    assert sorted(kept) == sorted(made)
    assert len(parse_entries(log)) == min(len(made), ENTRY_LIMIT)


def test_an_impossible_date_in_the_overflow_leaves_that_log_as_it_is_and_names_the_line(workspace: Workspace, team: TeamMemory):
    lines = [entry(0), entry(1, "2026-02-30"), *(entry(number) for number in range(2, 43))]
    bad = write_log(workspace, lines)
    good = write_log(workspace, [entry(number) for number in range(41)], "analyst")
    before = (bad.read_bytes(), bad.stat().st_mtime_ns)
    result = team.compact(author=AMY)
    assert (result.roles["dev"].archived, result.roles["dev"].kept, result.roles["dev"].line) == (0, 43, 4)
    assert "2026-02-30" in str(result.roles["dev"].refused)
    assert not result.complete
    assert (bad.read_bytes(), bad.stat().st_mtime_ns) == before
    assert result.roles["analyst"] == LogCompaction(kept=40, archived=1)
    assert len(parse_entries(good.read_bytes())) == 40
    assert list(archives(workspace)) == ["analyst-2026-03.md"]


def test_an_impossible_date_among_the_entries_that_stay_is_no_hindrance(workspace: Workspace, team: TeamMemory):
    write_log(workspace, [entry(0), *(entry(number, "2026-02-30") for number in range(1, 41))])
    assert team.compact(author=AMY).roles["dev"] == LogCompaction(kept=40, archived=1)


def test_with_a_role_only_its_log_is_compacted(workspace: Workspace, team: TeamMemory):
    write_log(workspace, [entry(number) for number in range(41)])
    other = write_log(workspace, [entry(number) for number in range(41)], "analyst")
    index = write_index(workspace, "- a\n- a\n")
    before = (other.read_bytes(), index.read_bytes())
    result = team.compact("dev", author=AMY)
    assert (list(result.roles), result.index) == (["dev"], None)
    assert (other.read_bytes(), index.read_bytes()) == before
    assert list(archives(workspace)) == ["dev-2026-03.md"]


def test_compacting_where_there_is_no_tree_makes_none(workspace: Workspace, team: TeamMemory):
    result = team.compact(author=AMY)
    assert (result.roles, result.index) == ({}, IndexCompaction(0, 0))
    assert team.compact("dev", author=AMY).roles == {}
    assert not (workspace.root / "ops").exists()


def test_the_log_before_its_compaction_is_kept_as_a_version(workspace: Workspace, team: TeamMemory):
    log = write_log(workspace, [entry(number) for number in range(41)])
    before = log.read_bytes()
    team.compact(author=AMY)
    [version] = list_versions(workspace, "ops/.team/memory/log/dev.md")
    assert (version.size_bytes, version.by) == (len(before), "user:amy")


def test_repeated_index_entries_go_and_the_order_stays(workspace: Workspace, team: TeamMemory):
    unique = [f"- fact {number}" for number in range(58)]
    index = write_index(workspace, "\n".join([*unique[:30], *unique[:12], *unique[30:]]) + "\n")
    result = team.compact(author=AMY)
    assert result.index == IndexCompaction(before=70, after=58)
    assert index.read_text().split("\n") == [*unique, ""]


def test_an_index_with_too_many_unique_lines_is_reported_and_left_byte_for_byte(workspace: Workspace, team: TeamMemory):
    index = write_index(workspace, "".join(f"- fact {number}\n" for number in range(61)) + "- fact 0\n")
    before = (index.read_bytes(), index.stat().st_mtime_ns)
    result = team.compact(author=AMY)
    assert result.index == IndexCompaction(before=62, after=62, over=61)
    assert not result.complete
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before


@pytest.mark.parametrize("end", ["\n", ""])
def test_an_index_of_exactly_sixty_lines_is_fine(workspace: Workspace, team: TeamMemory, end):
    index = write_index(workspace, "\n".join(f"- fact {number}" for number in range(60)) + end)
    before = (index.read_bytes(), index.stat().st_mtime_ns)
    result = team.compact(author=AMY)
    assert result.index == IndexCompaction(before=60, after=60)
    assert result.complete
    assert (index.read_bytes(), index.stat().st_mtime_ns) == before


def test_index_entries_that_differ_in_blanks_at_their_end_are_the_same():
    assert without_duplicates(b"- a  \n- b\n- a\n- a\t\r\n - a\n- A\n") == b"- a  \n- b\n - a\n- A\n"


def test_headings_blank_lines_and_prose_are_never_duplicates():
    text = b"# H\n\nsame\n\n# H\n\nsame\n* x\n* x\n"
    assert without_duplicates(text) == text


@given(st.lists(st.sampled_from(["- a", "- b", "- a ", "", "# h", "x"]), max_size=30))
def test_taking_out_repetitions_twice_is_the_same_as_once(lines):
    once = without_duplicates("\n".join(lines).encode())
    assert without_duplicates(once) == once
    assert {line.rstrip() for line in once.decode().split("\n")} == {line.rstrip() for line in lines or [""]}


def test_compaction_is_refused_while_an_attempt_is_open(workspace: Workspace):
    clock = [NOON]
    team = TeamMemory(workspace, OPS, now=lambda: clock[0])
    write_log(workspace, [entry(number) for number in range(45)])
    write_index(workspace, "- a\n- a\n")
    head = team.runs.start("Ship", by="human:amy")
    events = [
        {"type": "task.added", "task": "t1", "role": "dev", "title": "Build"},
        {
            "type": "attempt.started",
            "task": "t1",
            "attempt": 1,
            "role": "dev",
            "lease_until": time_text(NOON + timedelta(hours=1)),
        },
    ]
    for event in events:
        head = team.runs.append(head.run_id, parse_body(event), by="agent:dev", seq=head.seq + 1, prev=head.head)
    before = files_of(workspace.root / "ops")
    for _ in range(2):
        with pytest.raises(AgentsActiveError) as caught:
            team.compact(author=AMY)
        assert (caught.value.code, caught.value.attempts) == ("agents_active", ((head.run_id, "t1"),))
        assert files_of(workspace.root / "ops") == before
        clock[0] += timedelta(hours=2)  # not finished stays not finished, until a resume says so
    team.runs.resume()
    assert team.compact(author=AMY).roles["dev"].archived == 5


def test_an_open_attempt_of_a_run_that_was_finished_is_no_hindrance(workspace: Workspace, team: TeamMemory):
    head = team.runs.start("Ship", by="human:amy")
    for event in (
        {"type": "task.added", "task": "t1", "role": "dev", "title": "Build"},
        {"type": "attempt.started", "task": "t1", "attempt": 1, "role": "dev", "lease_until": "2030-01-01T00:00:00.000Z"},
        {"type": "run.finished", "outcome": "aborted"},
    ):
        head = team.runs.append(head.run_id, parse_body(event), by="human:amy", seq=head.seq + 1, prev=head.head)
    assert team.compact(author=AMY).complete


def test_a_corrupt_run_hinders_compaction_only_while_its_lease_is_valid(workspace: Workspace):
    clock = [NOON]
    team = TeamMemory(workspace, OPS, now=lambda: clock[0])
    head = team.runs.start("Ship", by="human:amy")
    for event in (
        {"type": "task.added", "task": "t1", "role": "dev", "title": "Build"},
        {
            "type": "attempt.started",
            "task": "t1",
            "attempt": 1,
            "role": "dev",
            "lease_until": time_text(NOON + timedelta(hours=1)),
        },
    ):
        head = team.runs.append(head.run_id, parse_body(event), by="human:amy", seq=head.seq + 1, prev=head.head)
    with (workspace.root / f"ops/.team/runs/{head.run_id}.jsonl").open("ab") as file:
        file.write(b"junk\njunk\n")
    with pytest.raises(AgentsActiveError):
        team.compact(author=AMY)
    clock[0] += timedelta(hours=2)
    assert team.compact(author=AMY).complete


def test_compaction_never_touches_the_runs(workspace: Workspace, team: TeamMemory):
    team.init(author=AMY)
    write_log(workspace, [entry(number) for number in range(45)])
    team.runs.start("Ship", by="human:amy")
    runs = workspace.root / "ops/.team/runs"
    (runs / "notes.md").write_bytes(b"".join(entry(number) + b"\n" for number in range(50)))
    before = files_of(runs)
    team.compact(author=AMY)
    assert files_of(runs) == before


def test_every_script_survives_compaction_byte_for_byte(workspace: Workspace, team: TeamMemory):
    texts = ["数据库已迁移", "👩‍👩‍👧‍👦 shipped 🚀", "שלום — מחר בבוקר", "é e\u0301 ﬁ \u202eabc\u202c", "a\ufeffb\u2028c"]
    odd = [f"- 2026-01-02 | note | {text} | - | -".encode() for text in texts]
    odd += [b"- 2026-01-02 | note | not utf-8 \xff\xfe | - | -", b"- 2026-01-02 | note | CRLF | - | -\r"]
    kept = [odd[number % len(odd)] for number in range(40)]
    log = write_log(workspace, [*odd, *kept])
    team.compact(author=AMY)
    assert log.read_bytes() == b"# Log: dev\n\n" + b"".join(line + b"\n" for line in kept)
    assert (memory(workspace) / "archive/dev-2026-01.md").read_bytes().split(b"\n")[3:-1] == odd
