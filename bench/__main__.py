"""`python -m bench` runs every benchmark, `python -m bench NAME …` the named ones."""

import os
import platform
import sys

from bench import append, indexing, roundtrip, search, startup, sync
from bot.config import quiet_libraries

BENCHES = {
    "startup": startup.run,
    "roundtrip": roundtrip.run,
    "append": append.run,
    "sync": sync.run,
    "search": search.run,
    "indexing": indexing.run,
}


def main() -> None:
    """Run what was asked for."""
    quiet_libraries()
    wanted = sys.argv[1:] or list(BENCHES)
    if unknown := [name for name in wanted if name not in BENCHES]:
        sys.exit(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(BENCHES)}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    for name in wanted:
        BENCHES[name]()


main()
