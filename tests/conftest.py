"""For all tests: examples are judged by what happens, never by how long it takes, because machines differ and are shared."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
