"""Runs all benchmarks but `throughput`: `make bench`; or some: `python -m tests.bench packing live`.

`python -m tests.bench throughput` and `disk-schedules` run on the real control plane, take long, and have options of their own.
"""

from __future__ import annotations

import sys

import typer

from tests.bench import disk_schedules, generic, http, live, offers, orders, packing, soak, throughput

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
    for name, bench in (("throughput", throughput), ("disk-schedules", disk_schedules)):
        if sys.argv[1:2] == [name]:
            sys.argv[:2] = [f"tests.bench {name}"]
            typer.run(bench.main)
            sys.exit()
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        sys.exit(
            f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)} throughput and disk-schedules"
        )
    for name in sys.argv[1:] or BENCHES:
        print(BENCHES[name].run(), flush=True)
