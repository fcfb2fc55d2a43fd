"""`LonghornCache` counts a bound pod before its own watch shows the Binding."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
import yaml

from app.kube.client import KubeClient
from app.kube.cluster_cache import WATCHED, ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from app.scheduler.cache import LONGHORN, LonghornCache, SchedulerCache
from scheduler_core.convert.generic import PendingPod
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.model import kube
from scheduler_core.structs import replace
from tests.builders import NOW
from tests.worlds.cluster_cache import path_of
from tests.worlds.fake_api import Object, until
from tests.worlds.scheduler import RecordingQueue, running_scheduler_with_policy_file, unwatched_cache, write_policy
from tests.worlds.scheduling_api import PODS, SCHEDULER_NAME, LonghornApi

KEY = ("shop", "web")
SNAPSHOT = Path(__file__).parents[3] / "examples" / "goal-2-multiple-claims" / "snapshot.yaml"
FIELDS = [entry.kind.field for entry in WATCHED]


def pod_with_claim(uid: str = "1", version: int = 10, **fields: Any) -> kube.Pod:
    return kube.Pod("shop", "web", uid=uid, version=version, volumes=(kube.ClaimVolume("data", "data"),), **fields)


def pending_pod(pod: kube.Pod | None = None) -> PendingPod:
    return PendingPod(pod or pod_with_claim(), scheduler_name=SCHEDULER_NAME)


def unlisted_cache() -> LonghornCache:
    timing = Timing(monotonic, random.uniform)
    cache = ClusterCache(cast("KubeClient", None), LONGHORN_NAMESPACE, timing, lambda: NOW, 60)
    return LonghornCache(cache, FilterOptions(), lambda: NOW)


def empty_cache() -> LonghornCache:
    """A cache whose kinds are all listed and empty; tests pass it the changes that reflectors would."""
    longhorn = unlisted_cache()
    for field in FIELDS:
        longhorn.cache[field].replace({})
    return longhorn


def counted_uids(longhorn: LonghornCache) -> list[str]:
    longhorn.facts_for(pending_pod(), {})
    return [pod.uid for pod in longhorn.bound.values()]


@pytest.mark.parametrize(
    ("shown", "counts"),
    [
        pytest.param(None, True, id="not delivered yet"),
        pytest.param(pod_with_claim(version=9), True, id="without a node"),
        pytest.param(pod_with_claim(version=20), True, id="changed, and still without a node"),
        pytest.param(pod_with_claim(node_name="a"), False, id="on its node"),
        pytest.param(pod_with_claim(phase="Failed"), False, id="finished"),
        pytest.param(pod_with_claim(deleting=True), False, id="being deleted"),
        pytest.param(pod_with_claim("0", version=9), True, id="an earlier pod of its name"),
        pytest.param(pod_with_claim("2", version=11), False, id="a later pod of its name"),
    ],
)
def test_a_bound_pod_counts_until_the_cache_shows_its_binding(shown: kube.Pod | None, counts: bool) -> None:
    longhorn = empty_cache()
    longhorn.on_bound(pending_pod(), "a")
    assert counted_uids(longhorn) == ["1"]
    if shown is not None:
        longhorn.cache["pods"].change(KEY, shown)
    assert counted_uids(longhorn) == (["1"] if counts else [])


def test_a_pod_without_claims_does_not_count() -> None:
    """The cache keeps no such pods, so it would never show the Binding."""
    longhorn = empty_cache()
    longhorn.on_bound(pending_pod(replace(pod_with_claim(), volumes=())), "a")
    assert counted_uids(longhorn) == []


def cache_with(new_longhorn_cache: Callable[[], LonghornCache]) -> SchedulerCache:
    cluster = unwatched_cache(RecordingQueue(), new_longhorn_cache)
    cluster.want(frozenset({LONGHORN}))
    cluster.objects["pods"].replace({KEY: pending_pod()})
    return cluster


async def test_longhorns_cache_gets_the_binding_and_the_end_of_assumed_pods() -> None:
    longhorn = empty_cache()
    cluster = cache_with(lambda: longhorn)
    cluster.assume(pending_pod(), "a")
    assert counted_uids(longhorn) == []
    cluster.objects["pods"].change(KEY, PendingPod(replace(pending_pod().pod, node_name="b")))
    assert [pod.node_name for pod in longhorn.bound.values()] == ["b"]
    cluster.objects["pods"].change(KEY, None)
    assert counted_uids(longhorn) == []


async def test_a_cache_that_is_not_listed_yet_gets_no_bindings() -> None:
    """It catches up once it is listed; until then, which may take weeks, nothing piles up."""
    longhorn = unlisted_cache()
    cluster = cache_with(lambda: longhorn)
    cluster.assume(pending_pod(), "a")
    cluster.objects["pods"].change(KEY, PendingPod(replace(pending_pod().pod, node_name="a")))
    assert longhorn.bound == {}


def four_disks() -> tuple[list[Object], Object]:
    """An example's cluster and pod, with its claims twice; only one such pod fits."""
    documents = (raw for raw in yaml.safe_load_all(SNAPSHOT.read_text()) if raw)
    objects = [item for raw in documents for item in (raw["items"] if raw["kind"].endswith("List") else [raw])]
    (pod,) = (raw for raw in objects if raw["kind"] == "Pod")
    cluster = [raw for raw in objects if raw["kind"] != "Pod"]
    for raw in cluster:
        if (raw["kind"], raw["apiVersion"]) == ("Node", "v1"):
            raw["status"] = {**raw.get("status", {}), "conditions": [{"type": "Ready", "status": "True"}]}
    second_claims = [copy.deepcopy(raw) for raw in cluster if raw["kind"] == "PersistentVolumeClaim"]
    for claim in second_claims:
        claim["metadata"] = {**claim["metadata"], "name": f"{claim['metadata']['name']}-2", "uid": "second"}
    pod["spec"]["schedulerName"] = SCHEDULER_NAME
    return [*cluster, *second_claims], pod


async def test_a_bound_pods_volumes_count_while_longhorns_cache_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.scheduler.scheduler.POLL_INTERVAL", 0.02)
    objects, first = four_disks()
    first["metadata"]["uid"] = "first"
    second = copy.deepcopy(first)
    second["metadata"].update(name="second", uid="second")
    for volume in second["spec"]["volumes"]:
        volume["persistentVolumeClaim"]["claimName"] += "-2"
    api = LonghornApi()
    for raw in objects:
        api.add(path_of(raw), raw)
    path = write_policy(tmp_path / "policy.json", {"name": "LonghornVolumeFit"})
    async with running_scheduler_with_policy_file(api, tmp_path, path) as scheduler:
        await until("the cluster", lambda: not scheduler.problem)
        longhorn = scheduler.cache.longhorn
        assert longhorn is not None
        pods = longhorn.cache["pods"]
        apply_change = pods.change
        delayed: list[tuple[Any, Any]] = []
        monkeypatch.setattr(pods, "change", lambda *change: delayed.append(change))
        await api.put(PODS, first)
        await until("the first pod", lambda: len(api.bindings) == 1)
        await until("the end of its assumption", lambda: not scheduler.cache.assumed_nodes)
        await api.put(PODS, second)
        await until("the refusal", lambda: api.events_with("FailedScheduling"))
        await until("the delayed change", lambda: any(value and value.node_name for _, value in delayed))
        for change in delayed:
            apply_change(*change)
        assert counted_uids(longhorn) == []
    assert len(api.bindings) == 1
