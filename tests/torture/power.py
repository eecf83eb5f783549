"""Power loss at random moments, over all write paths at once, on a `crash_fs`."""

import random
import tempfile
import time
from pathlib import Path

from persistence.workspace import open_workspace
from tests.torture.crew import Crew, Figures, check_doctor
from tests.torture.host import Host
from tests.torture.paths import PATHS
from tests.torture.volume import CrashVolume

ROUNDS_PER_WORKSPACE = 6
_LONGEST_LIFE_S = 0.6
_LASTING = "write|fsync|fsyncdir|rename|create|mkdir|link|unlink|truncate"


def run_power_losses(*, rounds, seed, mode="posix", how="torn", paths=tuple(PATHS), ops=_LASTING, say=lambda _: None):
    """Cut the power in each round, at a random one of these operations or moment; check after each; returns the figures."""
    rng, figures = random.Random(seed), Figures(seed)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder, Host() as host, CrashVolume(folder, mode) as volume:
        while figures.rounds < rounds and not figures.problems:
            volume.restore("empty")
            journals = Path(folder) / f"journals{figures.rounds}"
            journals.mkdir()
            crew = Crew(host, volume.root, journals, paths=paths)
            for _ in range(min(ROUNDS_PER_WORKSPACE, rounds - figures.rounds)):
                _one_round(volume, crew, rng, figures, how=how, ops=ops)
                if figures.problems:
                    break
            crew.count_into(figures)
            say(f"{mode}, {how}: {figures}")
    return figures


def _one_round(volume, crew, rng, figures, *, how, ops):
    volume.clear()
    loss_seed = rng.randrange(10**6)
    at = int(rng.triangular(1, 200 * crew.size, 20 * crew.size))
    volume.rule(op=ops, nth=at, then="power_loss", how=how, seed=loss_seed)
    crew.start()
    time.sleep(rng.uniform(0.05, _LONGEST_LIFE_S))
    if not volume.hits:
        volume.power_loss(how, seed=loss_seed)
    crew.kill_all()
    volume.clear()
    volume.power_on()
    figures.rounds += 1
    figures.power_losses += 1
    figures.problems += crew.check()
    figures.problems += check_doctor(open_workspace(volume.root)) if figures.rounds % ROUNDS_PER_WORKSPACE == 0 else []
