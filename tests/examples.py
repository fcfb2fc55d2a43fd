"""How many examples the property tests try: `.ci/run` tries twice and `make soak` ten times as many as `make check` (EXAMPLES_FACTOR)."""

import os

from hypothesis import settings

_FACTOR = int(os.environ.get("EXAMPLES_FACTOR", "1"))


def examples(count: int, *, steps: int = 50) -> settings:
    """So many examples; a state machine takes up to so many steps in each."""
    return settings(max_examples=_FACTOR * count, stateful_step_count=steps)
