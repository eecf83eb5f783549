"""SIGKILL at random moments, over all write paths at once."""

import random
import tempfile
import time
from pathlib import Path

from persistence.workspace import open_workspace
from tests.torture.crew import Crew, Figures, check_doctor
from tests.torture.host import Host
from tests.torture.paths import PATHS

ROUNDS_PER_WORKSPACE = 12
_LONGEST_LIFE_S = 0.35


def run_kills(*, rounds, seed, paths=tuple(PATHS), say=lambda _: None):
    """Kill every writer of these paths in each round, and check after each; returns the figures."""
    rng, figures = random.Random(seed), Figures(seed)
    with Host() as host:
        while figures.rounds < rounds and not figures.problems:
            with tempfile.TemporaryDirectory(prefix="torture-") as folder:
                root = Path(folder) / "workspace"
                root.mkdir()
                crew = Crew(host, root, Path(folder), paths=paths)
                _kill_again_and_again(crew, min(ROUNDS_PER_WORKSPACE, rounds - figures.rounds), rng, figures)
                figures.problems += check_doctor(open_workspace(root))
                crew.count_into(figures)
            refused = figures.refused.keys() - {"store_busy"}  # on a sound disk there is no other reason
            figures.problems += [f"a deed was refused as {code}" for code in sorted(refused)]
            say(str(figures))
    return figures


def _kill_again_and_again(crew, rounds, rng, figures):
    for _ in range(rounds):
        crew.start()
        pids = rng.sample(crew.pids, len(crew.pids))
        for pid in pids:
            time.sleep(rng.uniform(0, 2 * _LONGEST_LIFE_S / len(pids)))
            crew.kill(pid)
            figures.kills += 1
        figures.rounds += 1
        figures.problems += crew.check()
        if figures.problems:
            return
