"""Every benchmark in one run: `make bench`."""

from __future__ import annotations

from tests.bench import http, orders, packing

if __name__ == "__main__":
    for bench in (packing, orders, http):
        print(bench.run(), flush=True)
