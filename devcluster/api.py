"""A synchronous client of the API server. It is a `KubeClient` on its own event loop, in its own thread."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
from anyio.from_thread import start_blocking_portal

from app.kube.client import KubeClient


class Api:
    """Calls API paths and returns the decoded answers. It may be used from any thread, and from a coroutine for a short call."""

    def __init__(self, kubeconfig: Path) -> None:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal(name="devcluster-api"))
            self._portal = portal
            self._client = portal.call(KubeClient.connect, str(kubeconfig))
            stack.callback(portal.call, self._client.close)
            self._stack = stack.pop_all()

    def get(self, path: str) -> Any:
        return msgspec.json.decode(self._portal.call(self._client.get, path))

    def create(self, path: str, body: Mapping[str, Any]) -> Any:
        return msgspec.json.decode(self._portal.call(self._client.create, path, body))

    def patch(self, path: str, body: Mapping[str, Any]) -> Any:
        return msgspec.json.decode(self._portal.call(self._client.patch, path, body))

    def delete(self, path: str, options: Mapping[str, Any] | None = None) -> Any:
        return msgspec.json.decode(self._portal.call(self._client.delete, path, options))

    def close(self) -> None:
        self._stack.close()
