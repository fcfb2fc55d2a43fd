"""Runs all benchmarks: `make bench`; or some: `python -m tests.bench packing live`."""

from __future__ import annotations

import sys

from tests.bench import generic, http, live, offers, orders, packing

BENCHES = {"packing": packing, "orders": orders, "http": http, "live": live, "offers": offers, "generic": generic}

if __name__ == "__main__":
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    for name in sys.argv[1:] or BENCHES:
        print(BENCHES[name].run(), flush=True)
