"""The content of a small file that may be replaced at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Final

# How often files are read again. The content is compared, because a Secret's or ConfigMap's files are links whose times say nothing.
RELOAD_INTERVAL: Final = 2.0
MAX_BYTES: Final = 1024**2
# The outcome of a changed file, as metrics count it.
LOADED: Final = "loaded"
REFUSED: Final = "refused"


def read_content(path: str) -> bytes | str:
    """Returns the file's bytes, or a text why it cannot be read."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return content if len(content) <= MAX_BYTES else f"is larger than {MAX_BYTES} bytes"
