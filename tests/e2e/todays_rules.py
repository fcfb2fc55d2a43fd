"""Today's predicates compared with a real kube-scheduler: for random pods, on which nodes of random clusters each may run.

An extender in the test's process records the nodes that pass all of kube-scheduler's filters, and accepts none. So no pod is bound, and
every pod is decided in the same cluster. A pod for which it is not called fits on no node.
"""

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from app.kube.client import ApiError
from app.kube.resources import NAMESPACES as NAMESPACE_RESOURCE, NODES, PODS
from devcluster.build import CONTROLLER_MANAGER, KWOK
from devcluster.components import ClusterOptions
from devcluster.dev_cluster import DevCluster
from devcluster.polling import wait_until
from devcluster.stack import ROOT
from scheduler_core.convert.generic import NAMESPACE, NODE, SCHEDULED_POD
from scheduler_core.generic.cluster_state import GenericClusterState
from scheduler_core.generic.policy import Policy, parse_policy
from scheduler_core.generic.scheduler import find_nodes_that_fit
from tests.e2e.objects import Object, condition_of
from tests.e2e.report import Options, Part
from tests.worlds.scheduling_constraints import NAMESPACES, RUNTIME_CLASS, Generator, RandomCluster, object_of

POLICY = ROOT / "examples" / "policies" / "today.json"
NODE_COUNT = 10
PLACED = 30
PENDING = 60
_SEEDS = 40
_SETTLE = 0.5
_TIMEOUT = 60.0
_CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {qps: 1000, burst: 2000}
percentageOfNodesToScore: 100
profiles:
  - schedulerName: default-scheduler
    plugins:
      postFilter: {disabled: [{name: "*"}]}
extenders:
  - {urlPrefix: "http://127.0.0.1:1", filterVerb: filter, nodeCacheCapable: true, httpTimeout: 5s}
"""

_PodName = tuple[str, str]


@dataclass
class Comparison:
    """The decisions compared so far."""

    pods: int = 0  # how many pods were decided by both
    fitting: int = 0  # how many of them fit on a node
    refused: int = 0  # how many generated pods the API server did not accept
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)  # each different decision, as text

    def text(self) -> str:
        return (
            f"today's rules: {self.pods} pods, {self.fitting} of them fit somewhere, {len(self.wrong)} decided differently, "
            f"{self.refused} not accepted by the API server, {self.seconds:.0f} s"
        )


class Recorder:
    """An extender that records the nodes of each pod, and accepts none."""

    def __init__(self) -> None:
        self.nodes: dict[_PodName, frozenset[str]] = {}
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:  # the name is the base class's
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                names = body["NodeNames"] or []
                recorder.nodes[object_of(body["Pod"])] = frozenset(names)
                answer = json.dumps({"NodeNames": [], "FailedNodes": dict.fromkeys(names, "recorded")}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: Any) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens: ``host:port``."""
        return "{}:{}".format(*self._server.server_address[:2])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class World:
    """A control plane without controllers and kubelets: its objects stay as they are written."""

    def __init__(self, cluster: DevCluster, recorder: Recorder) -> None:
        self.cluster = cluster
        self._recorder = recorder

    def prepare(self) -> None:
        """Creates namespaces and a runtime class, and stops what would change nodes and pods."""
        api = self.cluster.api
        api.create("/apis/node.k8s.io/v1/runtimeclasses", RUNTIME_CLASS)
        for name, labels in NAMESPACES.items():
            api.create(NAMESPACE_RESOURCE.path(), {"metadata": {"name": name, "labels": labels}})
        for name in NAMESPACES:
            wait_until(f"the account of {name}", partial(self._has_account, name), _TIMEOUT)
        for process in (CONTROLLER_MANAGER, KWOK):
            self.cluster.processes[process].stop()

    def _has_account(self, namespace: str) -> bool:
        try:
            self.cluster.api.get(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        except ApiError:
            return False
        return True

    def compare(self, seed: int, comparison: Comparison) -> None:
        """Compares the decisions about the pods of one random cluster."""
        objects = Generator(seed).cluster(NODE_COUNT, PLACED, PENDING)
        try:
            comparison.refused += self._create(objects)
            # kube-scheduler learns of nodes and placed pods by different watches.
            time.sleep(_SETTLE)
            self._compare(objects.pending, seed, comparison)
        finally:
            self._delete(objects)

    def _create(self, objects: RandomCluster) -> int:
        """Creates nodes and placed pods; returns how many pods were not accepted."""
        api = self.cluster.api
        for node in objects.nodes:
            path = NODES.path(name=node["metadata"]["name"])
            api.create(NODES.path(), {"metadata": node["metadata"]})
            api.patch(f"{path}/status", {"status": node["status"]})
            # The API server has added the taint not-ready.
            api.patch(path, {"spec": node["spec"]})
        refused = 0
        for pod in objects.placed:
            if not self._create_pod(pod):
                refused += 1
                continue
            namespace, name = object_of(pod)
            api.patch(PODS.path(namespace, name, "status"), {"status": pod["status"]})
            if pod["terminating"] and pod["status"]["phase"] == "Running":
                api.delete(PODS.path(namespace, name))
        return refused

    def _create_pod(self, pod: Object) -> bool:
        namespace, _ = object_of(pod)
        try:
            self.cluster.api.create(PODS.path(namespace), {key: pod[key] for key in ("metadata", "spec")})
        except ApiError as error:
            if error.status != 422:
                raise
            return False
        return True

    def _compare(self, pending: Iterable[Object], seed: int, comparison: Comparison) -> None:
        accepted = []
        for pod in pending:
            if self._create_pod(pod):
                accepted.append(object_of(pod))
            else:
                comparison.refused += 1
        self._wait_until_decided(accepted)
        state, pods = self._state()
        different = [name for name in accepted if self._feasible(name) != _decide(state, pods[name])]
        if different:
            # A watch may have been late: only what stays different is wrong.
            self._decide_again(different, {object_of(pod): pod for pod in pending})
        for name in accepted:
            expected = self._feasible(name)
            decided = _decide(state, pods[name])
            comparison.pods += 1
            comparison.fitting += bool(expected)
            if decided != expected:
                comparison.wrong.append(
                    f"seed {seed}, pod {'/'.join(name)}: kube-scheduler {sorted(expected)}, policy {sorted(decided)}"
                )

    def _feasible(self, name: _PodName) -> frozenset[str]:
        return self._recorder.nodes.get(name, frozenset())

    def _decide_again(self, names: list[_PodName], pods: dict[_PodName, Object]) -> None:
        time.sleep(_SETTLE)
        for namespace, name in names:
            self.cluster.api.delete(f"{PODS.path(namespace, name)}?gracePeriodSeconds=0")
            self._recorder.nodes.pop((namespace, name), None)
            self._create_pod(pods[namespace, name])
        self._wait_until_decided(names)

    def _wait_until_decided(self, names: list[_PodName]) -> None:
        wanted = set(names)

        def undecided() -> set[_PodName]:
            pods = [pod for namespace in NAMESPACES for pod in self.cluster.api.get(PODS.path(namespace))["items"]]
            return wanted - {
                object_of(pod) for pod in pods if condition_of(pod, "PodScheduled").get("status") == "False"
            }

        wait_until("every pod to be decided", lambda: not undecided(), _TIMEOUT)

    def _state(self) -> tuple[GenericClusterState, dict[_PodName, Object]]:
        api = self.cluster.api
        pods = {object_of(raw): raw for raw in api.get(PODS.path())["items"]}
        nodes = api.get(NODES.path())["items"]
        state = GenericClusterState.of(
            [NODE.read(raw) for raw in nodes], [SCHEDULED_POD.read(raw) for raw in pods.values()], []
        )
        for raw in api.get(NAMESPACE_RESOURCE.path())["items"]:
            state = state.with_namespace(NAMESPACE.read(raw))
        return state, pods

    def _delete(self, objects: RandomCluster) -> None:
        for namespace in NAMESPACES:
            self.cluster.api.delete(f"{PODS.path(namespace)}?gracePeriodSeconds=0")
        for node in objects.nodes:
            self.cluster.api.delete(NODES.path(name=node["metadata"]["name"]))


def _decide(state: GenericClusterState, raw: Object) -> frozenset[str]:
    pod = SCHEDULED_POD.read(raw)
    result = find_nodes_that_fit(pod, None, state, _policy())
    return frozenset(node_info.node.name for node_info in result.feasible)


@cache
def _policy() -> Policy:
    return parse_policy(POLICY.read_bytes())


@contextmanager
def world(folder: Path) -> Iterator[World]:
    """A control plane whose kube-scheduler asks the recorder."""
    recorder = Recorder()
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "kube-scheduler.yaml"
    config.write_text(_CONFIG)
    options = ClusterOptions(scheduler_config=config, url_prefix=recorder.address, audit=False)
    try:
        with DevCluster(folder / "cluster", options) as cluster:
            started = World(cluster, recorder)
            started.prepare()
            yield started
    finally:
        recorder.close()


def report(folder: Path, options: Options) -> Part:
    comparison = run(folder, range(1, (options.repetitions or _SEEDS) + 1))
    return Part(comparison.wrong, asdict(comparison), [comparison.text()])


def run(folder: Path, seeds: Iterable[int], seconds: float = float("inf")) -> Comparison:
    """Compares random clusters, until the seeds or the seconds are used up."""
    comparison = Comparison()
    with world(folder) as started:
        began = time.monotonic()
        for seed in seeds:
            started.compare(seed, comparison)
            comparison.seconds = time.monotonic() - began
            if comparison.seconds > seconds:
                break
    return comparison
