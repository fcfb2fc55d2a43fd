"""A cache of one ConfigMap's data, which is empty while the ConfigMap does not exist."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from app.kube.client import KubeClient
from app.kube.reflector import Key, Phase, Reflector, Timing
from app.kube.resources import CONFIG_MAPS
from scheduler_core.convert.kube import ConfigMap
from scheduler_core.convert.meta import decode_json


class ConfigMapCache:
    """Keeps the data of one ConfigMap."""

    def __init__(self, client: KubeClient, namespace: str, name: str, timing: Timing) -> None:
        self.data: Mapping[str, str] = {}  # another mapping after every change
        self._reflector = Reflector(
            client,
            CONFIG_MAPS,
            _decode,
            self,
            timing,
            namespace=namespace,
            selectors={"fieldSelector": f"metadata.name={name}"},
        )

    async def run(self) -> None:
        await self._reflector.run()

    @property
    def problem(self) -> str:
        """Why the ConfigMap's data is unknown, or "". Once it has been read, the latest data never counts as stale."""
        status = self._reflector.status
        if status.phase is not Phase.STARTING:
            return ""
        return "ConfigMap not read yet" + (f": {status.problem}" if status.problem else "")

    def replace(self, objects: Mapping[Key, Mapping[str, str]]) -> None:
        self.data = next(iter(objects.values()), {})

    def change(self, key: Key, value: Mapping[str, str] | None) -> None:
        del key
        self.data = value or {}


def _decode(raw: bytes | msgspec.Raw) -> tuple[Key, Mapping[str, str] | None]:
    config_map = decode_json("ConfigMap", raw, ConfigMap)
    return config_map.metadata.name, config_map.data or {}
