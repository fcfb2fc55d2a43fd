"""One ConfigMap, watched: its data as texts, empty while it does not exist."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from app.kube.client import KubeClient
from app.kube.reflector import Key, Phase, Reflector, Timing
from app.kube.resources import CONFIG_MAPS
from scheduler_core.convert.kube import ConfigMap
from scheduler_core.convert.meta import shape_json


class ConfigMapCache:
    """Keeps the data of one ConfigMap."""

    def __init__(self, client: KubeClient, namespace: str, name: str, timing: Timing) -> None:
        self.data: Mapping[str, str] = {}
        self._reflector = Reflector(
            client,
            CONFIG_MAPS,
            _decode,
            self,
            timing,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
        )

    async def run(self) -> None:
        """Watches until cancelled."""
        await self._reflector.run()

    @property
    def problem(self) -> str:
        """Why it is not known what the ConfigMap says; "" if it is. Once known, what it said last counts."""
        standing = self._reflector.standing
        if standing.phase is Phase.STARTING:
            return "ConfigMap not read yet" + (f": {standing.problem}" if standing.problem else "")
        return ""

    def replaced(self, objects: Mapping[Key, Mapping[str, str]]) -> None:
        """Called by the reflector: the ConfigMap, or none."""
        self.data = next(iter(objects.values()), {})

    def changed(self, key: Key, value: Mapping[str, str] | None) -> None:
        """Called by the reflector."""
        del key
        self.data = value or {}


def _decode(raw: bytes | msgspec.Raw) -> tuple[Key, Mapping[str, str] | None]:
    config_map = shape_json("ConfigMap", raw, ConfigMap)
    return config_map.metadata.name, config_map.data or {}
