"""Runs the benchmarks: `make bench`, or some by `python -m tests.bench NAME`.

`python -m tests.bench throughput` is left out: it runs on the real control plane, takes long, and has options of its own.
"""

import sys

import typer

from tests.bench import http, live, longest_turn, offers, packing, soak, start, throughput

BENCHES = {
    "packing": packing,
    "http": http,
    "live": live,
    "offers": offers,
    "longest-turn": longest_turn,
    "start": start,
    "soak": soak,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["throughput"]:
        sys.argv[:2] = ["tests.bench throughput"]
        typer.run(throughput.main)
        sys.exit()
    unknown = set(sys.argv[1:]) - set(BENCHES)
    if unknown:
        sys.exit(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join([*BENCHES, 'throughput'])}")
    for name in sys.argv[1:] or BENCHES:
        print(BENCHES[name].run(), flush=True)
