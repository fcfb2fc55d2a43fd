"""Renders templates, with everything that they print escaped. The headers of every answer allow nothing but the page's
own files (`app/runtime/browser_rules.py`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import quote

from fastapi import Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from scheduler_core.longhorn.replenish_wait import parse_time
from scheduler_core.model.quantity import format_age, format_count

_FOLDER: Final = Path(__file__).parent
_MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# The address of an asset has a hash of its content.
_ASSET_CACHE: Final = "public, max-age=31536000, immutable"
_BYTE_UNITS: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi")


def render(template: str, context: Mapping[str, object]) -> bytes:
    return environment().get_template(template).render(context).encode()


def page_response(page: bytes, status: int = 200) -> Response:
    return Response(page, status, media_type="text/html; charset=utf-8")


def asset_response(name: str) -> Response | None:
    """Returns a file that pages use, None for an unknown name."""
    content = _assets().get(name)
    if content is None:
        return None
    media_type = _MEDIA_TYPES[Path(name).suffix]
    return Response(content, headers={"Cache-Control": _ASSET_CACHE}, media_type=media_type)


@cache
def _assets() -> Mapping[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((_FOLDER / "assets").iterdir())}


@cache
def _asset_link(name: str) -> str:
    return f"/assets/{name}?v={hashlib.sha256(_assets()[name]).hexdigest()[:12]}"


def compile_templates() -> None:
    """Compiles all templates, so that the first page of a process takes no longer than others."""
    for name in environment().list_templates():
        environment().get_template(name)


@cache
def environment() -> Environment:
    """Returns the templates of pages and reports, which escape every value that they print."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "bytes": short_bytes,
        "age": _age,
        "duration": format_age,
        "count": format_count,
        "segment": _segment,
        "utc": _utc,
    }
    environment.globals["asset"] = _asset_link
    return environment


def _segment(text: str) -> str:
    """Returns a text as one segment of a path."""
    return quote(text, safe="")


def short_bytes(size: int) -> str:
    """Returns a size in its largest binary unit, rounded down.

    >>> short_bytes(0), short_bytes(1536 * 1024**2), short_bytes(-(100 * 1024**4))
    ('0', '1.5Gi', '-100Ti')
    """
    sign = "-" if size < 0 else ""
    size = abs(size)
    power = min(max(0, (size.bit_length() - 1) // 10), len(_BYTE_UNITS) - 1)
    tenths = size * 10 >> 10 * power
    whole, tenth = divmod(tenths, 10)
    decimals = f".{tenth}" if tenth and whole < 100 and power else ""
    return f"{sign}{whole}{decimals}{_BYTE_UNITS[power]}"


def _age(created: str, now: datetime) -> str:
    """Returns how long ago something was created, "" if that is not known."""
    time = parse_time(created)
    return format_age((now - time).total_seconds()) if time is not None else ""


def _utc(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC")
