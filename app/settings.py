"""The configuration of the process, one frozen tree; every value is a flag of `serve`, and most an environment variable."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from scheduler_core.verbs import Options

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9504
DEFAULT_MAX_BODY = 256 * 1024**2


class BestEffort(StrEnum):
    """What a best-effort volume asks of its pod's node."""

    REQUIRE = "require"
    PREFER = "prefer"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an administrator may choose about the service."""

    host: str = DEFAULT_HOST
    """Address to listen on. Loopback, because nothing authenticates callers of plain HTTP."""

    port: int = DEFAULT_PORT
    """TCP port to listen on; 0 picks a free one."""

    max_body: int = DEFAULT_MAX_BODY
    """Bytes a request's body may have. 5,000 full nodes of 10 kB are 50 MB."""

    options: Options = field(default_factory=Options)
    """How decisions are made."""
