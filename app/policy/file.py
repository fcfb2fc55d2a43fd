"""Reads the policy file of `serve --policy` and `schedule --watch --policy`, again whenever its content changes.

The content is compared and not the file's times, so it does not matter whether the file is written, replaced, or a ConfigMap's link
that is switched. A file that cannot be used is logged and shown in /state, and the previous policy stays in force.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from app.runtime.file_content import LOADED, REFUSED, RELOAD_INTERVAL, read_content
from scheduler_core.errors import CoreError
from scheduler_core.generic.plugin_rules import NO_PLUGINS, Plugins
from scheduler_core.generic.policy import Policy, PolicyError, parse_policy

log = structlog.get_logger("policy")


class PolicyFileError(CoreError):
    """A policy file cannot be used; the text names the file and each wrong entry."""


class PolicyFile:
    """Owner of the policy that was read last.

    Args:
        path: of the file
        plugins: the rules from outside the package that it may name

    Raises:
        PolicyFileError: the file cannot be used now
    """

    def __init__(self, path: str, plugins: Plugins = NO_PLUGINS) -> None:
        self.path = path
        self._plugins = plugins
        self.problem = ""
        self._observer: Callable[[str], None] = lambda _: None
        self._content = read_content(path)
        self.policy = _parse(path, self._content, plugins)

    def subscribe(self, observer: Callable[[str], None]) -> None:
        """Calls `observer` with each reload's result: ``loaded`` or ``refused``."""
        self._observer = observer

    async def run(self) -> None:
        while True:
            await asyncio.sleep(RELOAD_INTERVAL)
            await self.reload()

    async def reload(self) -> None:
        """Reads the file, and parses it if its content changed."""
        content = await asyncio.to_thread(read_content, self.path)
        if content == self._content:
            return
        self._content = content
        try:
            # In a thread, because the type of a plugin's argument may compute for long.
            policy = await asyncio.to_thread(_parse, self.path, content, self._plugins)
        except PolicyFileError as error:
            self.problem = str(error)
            log.warning("policy refused, the one before stays", problem=self.problem)
            self._observer(REFUSED)
            return
        self.policy = policy
        self.problem = ""
        if policy.warnings:
            log.warning("policy loaded", file=self.path, warnings=list(policy.warnings))
        else:
            log.info("policy loaded", file=self.path, warnings=[])
        self._observer(LOADED)


def _parse(path: str, content: bytes | str, plugins: Plugins) -> Policy:
    if isinstance(content, str):
        raise PolicyFileError(f"{path}: {content}")
    try:
        return parse_policy(content, plugins)
    except PolicyError as error:
        raise PolicyFileError(f"{path}: {error}") from error
