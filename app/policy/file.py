"""The policy file of `serve --policy` and of `schedule --watch --policy`: read at the start, and again whenever its content changes.

The content is looked at, not the times: a file that is replaced, or a ConfigMap's link that is swapped, is just another content. What
cannot be used is logged and shown in /state, and the policy before it stays in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from scheduler_core.errors import CoreError
from scheduler_core.generic.policy import Policy, PolicyError, parse_policy

log = structlog.get_logger("policy")

LOOK_SECONDS: Final = 2.0
LARGEST: Final = 1024**2
LOADED: Final = "loaded"
REFUSED: Final = "refused"


class PolicyFileError(CoreError):
    """A policy file that cannot be used; the text names the file, and each entry that is wrong."""


class PolicyFile:
    """Owner of the policy that was read last.

    Raises:
        PolicyFileError: the file cannot be used now
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""
        self._count: Callable[[str], None] = lambda _: None
        self._seen = _content(path)
        self.policy = _parsed(path, self._seen)

    def tell(self, count: Callable[[str], None]) -> None:
        """Sets who is told the result of every later reading: ``loaded`` or ``refused``."""
        self._count = count

    async def run(self) -> None:
        """Looks at the file now and then until cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Reads the file, and its policy if the content is another one."""
        found = await asyncio.to_thread(_content, self.path)
        if found == self._seen:
            return
        self._seen = found
        try:
            policy = _parsed(self.path, found)
        except PolicyFileError as error:
            self.problem = str(error)
            log.warning("policy refused, the one before stays", problem=self.problem)
            self._count(REFUSED)
            return
        self.policy, self.problem = policy, ""
        tell = log.warning if policy.warnings else log.info
        tell("policy loaded", file=self.path, warnings=list(policy.warnings))
        self._count(LOADED)

    def adopt(self) -> None:
        """As a companion of `Live`: who leads plays no part."""

    def clear(self) -> None:
        """As a companion of `Live`."""


def _content(path: str) -> bytes | str:
    """What the file holds; a text says why that cannot be told."""
    try:
        with Path(path).open("rb") as file:
            found = file.read(LARGEST + 1)
    except (OSError, ValueError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return found if len(found) <= LARGEST else f"is larger than {LARGEST} bytes"


def _parsed(path: str, content: bytes | str) -> Policy:
    if isinstance(content, str):
        raise PolicyFileError(f"{path}: {content}")
    try:
        return parse_policy(content)
    except PolicyError as error:
        raise PolicyFileError(f"{path}: {error}") from error
