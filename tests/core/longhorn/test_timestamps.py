"""RFC 3339 timestamps are read as Go reads them."""

from datetime import UTC, datetime

import pytest

from scheduler_core.longhorn.cluster import parse_time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("2026-01-01T00:00:00Z", datetime(2026, 1, 1, tzinfo=UTC), id="UTC"),
        pytest.param("2026-01-01T02:00:00+02:00", datetime(2026, 1, 1, tzinfo=UTC), id="offset"),
        pytest.param("2026-01-01T00:00:00.1234567Z", datetime(2026, 1, 1, 0, 0, 0, 123456, UTC), id="fraction"),
        pytest.param("2026-01-01T00:00:00", None, id="no zone"),
        pytest.param("2026-01-01", None, id="only a date"),
        pytest.param("2026-13-01T00:00:00Z", None, id="no such month"),
        pytest.param("", None, id="empty"),
    ],
)
def test_only_rfc_3339_with_a_zone_is_a_time(text: str, expected: datetime | None) -> None:
    """Go's time.Parse is as strict."""
    assert parse_time(text) == expected
