"""Runs all benchmarks but `throughput`: `make bench`; or some: `python -m tests.bench packing live`.

`python -m tests.bench throughput` runs on the real control plane, takes long, and has options of its own.
"""

from __future__ import annotations

import sys

import typer

from tests.bench import generic, http, live, offers, orders, packing, soak, throughput

BENCHES = {
    "packing": packing,
    "orders": orders,
    "http": http,
    "live": live,
    "offers": offers,
    "generic": generic,
    "soak": soak,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["throughput"]:
        sys.argv[:2] = ["tests.bench throughput"]
        typer.run(throughput.main)
        sys.exit()
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)} and throughput")
    for name in sys.argv[1:] or BENCHES:
        print(BENCHES[name].run(), flush=True)
