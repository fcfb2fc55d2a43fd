"""Points in time as Longhorn stores them: RFC 3339 texts, parsed as strictly as by Go's time.Parse(time.RFC3339, ...)."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

_RFC3339: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})([.,]\d+)?(Z|[+-]\d{2}:\d{2})", re.ASCII)


def parse_time(text: str) -> datetime | None:
    """The time in an RFC 3339 text, None otherwise. Digits past the microsecond are dropped."""
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    seconds, fraction, zone = match.groups()
    digits = (fraction or ".0")[1:7].ljust(6, "0")
    try:
        return datetime.fromisoformat(f"{seconds}.{digits}{'+00:00' if zone == 'Z' else zone}")
    except ValueError:
        return None
