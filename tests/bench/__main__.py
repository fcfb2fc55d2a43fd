"""Runs the benchmarks: `make bench`, or some by `python -m tests.bench NAME`.

Those on the real control plane are left out. `python -m tests.bench throughput` and `disk-schedules` run there, take long, and have
options of their own.
"""

import sys

import typer

from tests.bench import disk_schedules, http, live, longest_turn, offers, packing, soak, start, throughput

BENCHES = {
    "packing": packing,
    "http": http,
    "live": live,
    "offers": offers,
    "longest-turn": longest_turn,
    "start": start,
    "soak": soak,
}
ON_CONTROL_PLANE = {"throughput": throughput, "disk-schedules": disk_schedules}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in ON_CONTROL_PLANE:
        name = sys.argv[1]
        sys.argv[:2] = [f"tests.bench {name}"]
        typer.run(ON_CONTROL_PLANE[name].main)
        sys.exit()
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        sys.exit(
            f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join([*BENCHES, *ON_CONTROL_PLANE])}"
        )
    for name in sys.argv[1:] or BENCHES:
        print(BENCHES[name].run(), flush=True)
