"""`python -m tests.torture kill|power|faults|tasks|all`: the long forms, with their figures; exit code 1 for a problem."""

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
from tests.torture.volume import why_no_crash_fs

LOSSES = (("posix", "drop"), ("posix", "prefix"), ("posix", "torn"), ("strict", "drop"), ("strict", "torn"), ("efs", "torn"))


def _kill(options):
    return [run_kills(rounds=options.rounds, seed=options.seed, paths=options.path)]


def _power(options):
    found = []
    for mode, how in LOSSES:
        print(f"volume {mode}, power loss {how}")
        rounds = max(1, options.rounds // len(LOSSES))
        found.append(run_power_losses(rounds=rounds, seed=options.seed, mode=mode, how=how, paths=options.path))
    return found


def _faults(options):
    return [run_faults(seed=options.seed, paths=options.path, share=options.share, say=print)]


def _tasks(options):
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        return [run_tasks(Path(folder), seconds=options.seconds, seed=options.seed)]


TORTURES = {"kill": _kill, "power": _power, "faults": _faults, "tasks": _tasks}


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.torture")
    parser.add_argument("what", choices=[*TORTURES, "all"])
    parser.add_argument("--rounds", type=int, default=240, help="of kills or power losses, each over all paths")
    parser.add_argument("--seconds", type=float, default=60, help="of two tasks on one volume")
    parser.add_argument("--share", type=float, default=1.0, help="of the faults that there are")
    parser.add_argument("--path", action="append", choices=PATHS, help="only these write paths")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options = parser.parse_args()
    options.path = tuple(options.path or PATHS)
    if options.what != "kill" and (missing := why_no_crash_fs()):
        parser.error(missing)
    failed = False
    for name in TORTURES if options.what == "all" else (options.what,):
        begun = time.monotonic()
        print(f"== {name}, seed {options.seed}", flush=True)
        for figures in TORTURES[name](options):
            print(figures)
            failed |= bool(figures.problems)
        print(f"{time.monotonic() - begun:.0f} s", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
