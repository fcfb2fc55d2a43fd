"""A plain watch of one kind of objects, without any of the product's code."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Final, Self

from devcluster import DevCluster
from devcluster.components import KUBECTL
from devcluster.process import child_environment
from tests.e2e.objects import Object

OnEvent = Callable[[str, Object, float], None]
"""Receives the type of an event, the object, and the time of its arrival in seconds since 1970."""

_SYNC_SECONDS: Final = 30.0


class ObjectWatch:
    """Passes every object of a path, present and future, to a function, while entered.

    `kubectl get --raw` copies the API server's stream. The API server ends a watch after 30 minutes at the earliest.
    """

    def __init__(self, cluster: DevCluster, path: str, on_event: OnEvent) -> None:
        self._argv = [
            str(cluster._binaries / KUBECTL),
            f"--kubeconfig={cluster.kubeconfig}",
            "get",
            "--raw",
            f"{path}?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
        ]
        self._on_event = on_event
        self._synced = threading.Event()
        self._thread = threading.Thread(target=self._read, name=f"watch {path}")

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, env=child_environment())
        self._thread.start()
        assert self._synced.wait(_SYNC_SECONDS), "the watch does not begin"
        return self

    def __exit__(self, *_: object) -> None:
        ended = self._process.poll()
        self._process.terminate()
        self._process.wait()
        self._thread.join()
        assert ended is None, f"the watch ended with {ended}, so events are missing"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            if event["type"] == "BOOKMARK":
                self._synced.set()
            else:
                self._on_event(event["type"], event["object"], time.time())
