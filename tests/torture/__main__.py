"""`python -m tests.torture kill|power|…`: the long forms, with their figures; exit code 1 for a problem."""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.torture.faults import run_faults
from tests.torture.kill import run_kills
from tests.torture.paths import PATHS
from tests.torture.power import run_power_losses
from tests.torture.tasks import run_tasks


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("what", choices=["kill", "power", "faults", "tasks"])
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--mode", default="posix")
    parser.add_argument("--how", default="torn")
    parser.add_argument("--path", action="append")
    parser.add_argument("--share", type=float, default=1.0)
    options = parser.parse_args()
    begun = time.monotonic()
    if options.what == "kill":
        figures = run_kills(rounds=options.rounds, seed=options.seed, say=print)
    elif options.what == "faults":
        paths = tuple(options.path or PATHS)
        figures = run_faults(seed=options.seed, paths=paths, mode=options.mode, share=options.share, say=print)
    elif options.what == "tasks":  # rounds are seconds here
        with tempfile.TemporaryDirectory(prefix="torture-") as folder:
            figures = run_tasks(Path(folder), seconds=options.rounds, seed=options.seed, say=print)
    else:
        figures = run_power_losses(rounds=options.rounds, seed=options.seed, mode=options.mode, how=options.how, say=print)
    print(figures, f"{time.monotonic() - begun:.0f} s", sep="\n")
    return bool(figures.problems)


if __name__ == "__main__":
    sys.exit(main())
