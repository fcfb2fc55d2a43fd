"""A plain watch of one kind of objects, without any of the product's code."""

import json
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Self

from devcluster.build import KUBECTL, ensure_built
from devcluster.dev_cluster import DevCluster
from devcluster.process import child_environment
from tests.e2e.objects import Object

OnEvent = Callable[[str, Object, float], None]
"""Receives the type of an event, the object, and the time of its arrival in seconds since 1970."""

_SYNC_SECONDS = 30.0
_GONE = 410
_EVERYTHING = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan"


class ObjectWatch:
    """Passes every object of a path, present and future, to a function, while entered. `kubectl get --raw` copies the API server's stream.
    The API server ends the watch of a slow reader; the next one goes on after the last event, so that none is missing.
    """

    def __init__(self, cluster: DevCluster, path: str, on_event: OnEvent) -> None:
        self._argv = [str(ensure_built() / KUBECTL), f"--kubeconfig={cluster.kubeconfig}", "get", "--raw"]
        self._path = path
        self._on_event = on_event
        self._synced = threading.Event()
        self._closing = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name=f"watch {path}")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._synced.wait(_SYNC_SECONDS), f"the watch does not begin: {self._problem}"
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        if self._process is not None:
            self._process.terminate()
        self._thread.join()
        assert not self._problem, f"events are missing: {self._problem}"

    def _run(self) -> None:
        version = ""
        while not self._closing.is_set() and not self._problem:
            query = f"resourceVersion={version}" if version else _EVERYTHING
            argv = [*self._argv, f"{self._path}?watch=true&allowWatchBookmarks=true&{query}"]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, env=child_environment()) as process:
                self._process = process
                version = "" if self._closing.is_set() else self._read(process, version)
                process.terminate()

    def _read(self, process: subprocess.Popen[bytes], version: str) -> str:
        """Passes on the events of one stream that begins after a version; returns the last version, "" if none is of use."""
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # cut off; the next stream begins with this event
            event = json.loads(line)
            if event["type"] == "ERROR":
                # An API server that was restarted does not know the version: everything is passed on again.
                if event["object"].get("code") == _GONE:
                    return ""
                self._problem = str(event["object"])
                break
            if event["type"] == "BOOKMARK":
                self._synced.set()
            else:
                self._on_event(event["type"], event["object"], time.time())
            if self._synced.is_set():
                version = event["object"]["metadata"]["resourceVersion"]
        return version
