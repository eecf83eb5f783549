"""SIGKILL at random moments, over all write paths at once."""

import random
import tempfile
import time
from pathlib import Path

from persistence.workspace import open_workspace
from tests.torture.crew import Crew, Figures, check_doctor
from tests.torture.host import Host

ROUNDS_PER_WORKSPACE = 12
_LONGEST_LIFE_S = 0.35


def run_kills(*, rounds, seed, say=lambda _: None):
    """Kill every writer of every path in each round, and check after each; returns the figures."""
    rng, figures = random.Random(seed), Figures(seed)
    with Host() as host:
        while figures.rounds < rounds and not figures.problems:
            with tempfile.TemporaryDirectory(prefix="torture-") as folder:
                _one_workspace(host, Path(folder), min(ROUNDS_PER_WORKSPACE, rounds - figures.rounds), rng, figures)
            say(str(figures))
    return figures


def _one_workspace(host, folder, rounds, rng, figures):
    root = folder / "workspace"
    root.mkdir()
    crew = Crew(host, root, folder)
    for _ in range(rounds):
        crew.start()
        for pid in rng.sample(crew.pids, len(crew.pids)):
            time.sleep(rng.uniform(0, 2 * _LONGEST_LIFE_S / 14))
            crew.kill(pid)
            figures.kills += 1
        figures.rounds += 1
        figures.problems += crew.check()
        if figures.problems:
            break
    figures.problems += check_doctor(open_workspace(root))
    crew.count_into(figures)
