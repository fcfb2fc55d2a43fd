"""A cache of one ConfigMap's data, which is empty while the ConfigMap does not exist."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec

from app.kube.client import KubeClient
from app.kube.reflector import Key, Timing
from app.kube.resources import CONFIG_MAPS
from app.kube.store import Store, Watch
from scheduler_core.convert.kube import ConfigMap
from scheduler_core.convert.meta import decode_json

_NO_DATA: Final[Mapping[str, str]] = {}


class ConfigMapCache:
    """Keeps the data of one ConfigMap. Once it has been listed, the latest data never counts as stale."""

    def __init__(self, client: KubeClient, namespace: str, name: str, timing: Timing) -> None:
        selectors = {"fieldSelector": f"metadata.name={name}"}
        self._watch = Watch(
            CONFIG_MAPS, _decode, namespace=namespace, selectors=selectors, label="ConfigMap", required=False
        )
        self._store = Store(client, timing, math.inf)
        self._store.watch(name, self._watch)

    async def run(self) -> None:
        await self._store.run()

    @property
    def data(self) -> Mapping[str, str]:
        """Another mapping after every change."""
        return next(self._watch.objects.values(), _NO_DATA)

    @property
    def problem(self) -> str:
        return self._store.problem()


def _decode(raw: bytes | msgspec.Raw) -> tuple[Key, Mapping[str, str] | None]:
    config_map = decode_json("ConfigMap", raw, ConfigMap)
    return config_map.metadata.name, config_map.data or {}
