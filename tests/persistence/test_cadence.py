"""When a lane takes up what changed in memory."""

import pytest

from persistence.cadence import Cadence, should_inject


def turns(every_n, *, writes=(), upto=16):
    """The turns at which memory is taken up; `writes` are turns during which something is written."""
    cadence, written, taken = Cadence(), 0, []
    for turn in range(1, upto + 1):
        cadence = cadence.begin_turn()
        if cadence.is_due(every_n=every_n, written=written):
            cadence = cadence.hold(f"memory of turn {turn}", written=written)
            taken.append(turn)
        assert cadence.held == f"memory of turn {taken[-1]}"
        written += turn in writes
    return taken


@pytest.mark.parametrize(
    ("every_n", "expected"),
    [(5, [1, 5, 10, 15]), (2, [1, 2, 4, 6, 8, 10, 12, 14, 16]), (1, list(range(1, 17))), (100, [1])],
)
def test_memory_is_taken_up_at_the_first_turn_and_at_every_nth(every_n, expected):
    assert turns(every_n) == expected


def test_a_write_is_taken_up_at_the_next_turn_and_the_count_goes_on():
    assert turns(5, writes={2, 7}) == [1, 3, 5, 8, 10, 15]


def test_after_a_compaction_the_count_begins_anew():
    cadence = Cadence().begin_turn().hold("a", written=0).begin_turn()
    assert not cadence.is_due(every_n=5, written=0)
    assert Cadence().begin_turn().is_due(every_n=5, written=0)


def test_a_write_that_comes_while_memory_is_read_is_not_forgotten():
    cadence = Cadence().begin_turn()
    before = 3
    cadence = cadence.hold("read before the fourth write", written=before)
    assert cadence.begin_turn().is_due(every_n=5, written=4)


def test_an_empty_memory_counts_as_taken_up():
    cadence = Cadence().begin_turn().hold("", written=0)
    assert not cadence.begin_turn().is_due(every_n=5, written=0)


def test_the_rule_is_first_or_dirty_or_every_nth():
    assert should_inject(1, every_n=5, injected_before=False, dirty=False)
    assert should_inject(2, every_n=5, injected_before=True, dirty=True)
    assert should_inject(10, every_n=5, injected_before=True, dirty=False)
    assert not should_inject(6, every_n=5, injected_before=True, dirty=False)
