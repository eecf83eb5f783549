"""Two tasks on one volume, in short (`make torture` runs the long form)."""

from tests.torture.tasks import run_tasks


def test_two_servers_on_one_volume_lose_nothing_while_one_is_killed_again_and_again(tmp_path):
    figures = run_tasks(tmp_path, seconds=12, seed=4711)
    print(figures)
    assert figures.problems == []
    assert figures.posts > 50
    assert figures.topics > 5
    assert figures.counted > 5
    assert figures.kills >= 2
    assert max(figures.waits_ms) < 30_000
