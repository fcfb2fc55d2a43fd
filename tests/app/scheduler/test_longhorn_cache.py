"""What pods demand that were bound before: of one watch they have landed already, of the other nothing was heard yet."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, cast

import pytest
import yaml

from app.kube.client import KubeClient
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from app.kube.watched_kinds import WATCHED
from app.scheduler.cache import SchedulerCache
from app.scheduler.longhorn_cache import LonghornCache
from app.scheduler.policy_sources import LONGHORN, PolicyInputs
from scheduler_core.convert.binding import PendingPod
from scheduler_core.extender.decision import FilterOptions
from scheduler_core.model import kube
from scheduler_core.model.generic import Pod
from tests.app.scheduler.test_cache import Heard
from tests.app.scheduler.test_policy_sources import LonghornApi, by_file, written
from tests.builders import NOW
from tests.worlds.cluster_cache import path_of
from tests.worlds.fake_api import Object, until
from tests.worlds.scheduling_api import NAME, PODS

pytestmark = pytest.mark.anyio
KEY = ("shop", "web")
SNAPSHOT = Path(__file__).parents[3] / "examples" / "goal-2-multiple-claims" / "snapshot.yaml"
FIELDS = [entry.kind.field for entry in WATCHED]


def mounting(uid: str = "1", version: int = 10, **fields: Any) -> kube.Pod:
    """A pod with a claim."""
    return kube.Pod("shop", "web", uid=uid, version=version, volumes=(kube.ClaimVolume("data", "data"),), **fields)


def applicant(mounts: kube.Pod | None = None) -> PendingPod:
    """The same as whoever binds it reads it."""
    return PendingPod(Pod("shop", "web", uid="1"), mounts or mounting(), scheduler_name="mine", needs_node=True)


def unwatched() -> LonghornCache:
    """Nobody runs its cache; what reflectors would tell is told by hand."""
    timing = Timing(monotonic, random.uniform)
    cache = ClusterCache(cast("KubeClient", None), LONGHORN_NAMESPACE, timing, lambda: NOW, 60)
    return LonghornCache(cache, FilterOptions(), lambda: NOW)


def listed() -> LonghornCache:
    """Everything is listed, and there is nothing."""
    made = unwatched()
    for field in FIELDS:
        made.cache.replaced(field, {})
    return made


def counted(longhorn: LonghornCache) -> list[str]:
    """The UIDs of pods that are put on their nodes though the cache does not show them there."""
    longhorn._drop_shown_pods()
    return [pod.uid for pod in longhorn._bound.values()]


@pytest.mark.parametrize(
    ("shown", "still"),
    [
        pytest.param(None, True, id="not heard of yet"),
        pytest.param(mounting(version=9), True, id="without a node"),
        pytest.param(mounting(version=20), True, id="changed, and still without a node"),
        pytest.param(mounting(node_name="a"), False, id="on its node"),
        pytest.param(mounting(phase="Failed"), False, id="finished"),
        pytest.param(mounting(deleting=True), False, id="being deleted"),
        pytest.param(mounting("0", version=9), True, id="the pod of its name before it"),
        pytest.param(mounting("2", version=11), False, id="the pod of its name after it"),
    ],
)
def test_what_was_bound_counts_until_the_cache_has_heard_of_it(shown: kube.Pod | None, still: bool) -> None:
    """Of a pod that was not heard of yet that is all there is."""
    longhorn = listed()
    longhorn.on_bound(applicant(), "a")
    assert counted(longhorn) == ["1"]
    if shown is not None:
        longhorn.cache.changed("pods", KEY, shown)
    assert counted(longhorn) == (["1"] if still else [])


def test_what_has_left_counts_no_more() -> None:
    """Though the cache never heard of it, nor ever will."""
    longhorn = listed()
    longhorn.on_bound(applicant(), "a")
    longhorn.on_gone(KEY)
    assert counted(longhorn) == []


def test_a_pod_without_claims_demands_nothing() -> None:
    """The cache keeps none of these, so it would never show it."""
    longhorn = listed()
    longhorn.on_bound(applicant(replace(mounting(), volumes=())), "a")
    assert counted(longhorn) == []


def sources(make: Callable[[], LonghornCache]) -> tuple[PolicyInputs, SchedulerCache]:
    """Sources beside a cluster that nobody watches; a pod waits there."""
    cluster = SchedulerCache(
        cast("KubeClient", None), "mine", Heard(), Timing(monotonic, random.uniform), stale_after=60
    )
    made = PolicyInputs(cluster, make)
    cluster._cache.replaced("pods", {KEY: applicant()})
    return made, cluster


async def test_longhorn_hears_what_becomes_of_assumed_pods() -> None:
    """Whatever the policy in force reads: the next one may read it."""
    longhorn = listed()
    made, cluster = sources(lambda: longhorn)
    made.want(frozenset({LONGHORN}))
    cluster.assume(applicant(), "a")
    assert counted(longhorn) == []
    cluster._cache.changed("pods", KEY, PendingPod(replace(applicant().pod, node_name="a")))
    assert [pod.node_name for pod in longhorn._bound.values()] == ["a"]
    cluster._cache.changed("pods", KEY, None)
    assert counted(longhorn) == []


async def test_caches_that_are_not_listed_yet_need_not_hear() -> None:
    """They catch up once they are; until then, which may take weeks, nothing piles up."""
    longhorn = unwatched()
    made, cluster = sources(lambda: longhorn)
    made.want(frozenset({LONGHORN}))
    cluster.assume(applicant(), "a")
    cluster._cache.changed("pods", KEY, PendingPod(replace(applicant().pod, node_name="a")))
    assert longhorn._bound == {}


def four_disks() -> tuple[list[Object], Object]:
    """The cluster of an example, with claims for two pods that fit node-4 one by one; and its pod."""
    lists = (raw for raw in yaml.safe_load_all(SNAPSHOT.read_text()) if raw)
    objects = [each for raw in lists for each in (raw["items"] if raw["kind"].endswith("List") else [raw])]
    (pod,) = (raw for raw in objects if raw["kind"] == "Pod")
    others = [raw for raw in objects if raw["kind"] != "Pod"]
    for raw in others:
        if (raw["kind"], raw["apiVersion"]) == ("Node", "v1"):
            raw["status"] = {**raw.get("status", {}), "conditions": [{"type": "Ready", "status": "True"}]}
    claims = [copy.deepcopy(raw) for raw in others if raw["kind"] == "PersistentVolumeClaim"]
    for claim in claims:
        claim["metadata"] = {**claim["metadata"], "name": f"{claim['metadata']['name']}-2", "uid": "second"}
    pod["spec"]["schedulerName"] = NAME
    return [*others, *claims], pod


async def test_a_bound_pods_volumes_count_though_longhorns_own_watch_lags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first pod is seen on its node by one watch, and the other, which tells what volumes demand, has heard nothing of it."""
    monkeypatch.setattr("app.scheduler.policy_sources.POLL_INTERVAL", 0.02)
    objects, first = four_disks()
    first["metadata"]["uid"] = "first"
    second = copy.deepcopy(first)
    second["metadata"].update(name="second", uid="second")
    for volume in second["spec"]["volumes"]:
        volume["persistentVolumeClaim"]["claimName"] += "-2"
    api = LonghornApi()
    for raw in objects:
        api.add(path_of(raw), raw)
    path = written(tmp_path / "policy.json", {"name": "LonghornVolumeFit"})
    async with by_file(api, tmp_path, path) as scheduler:
        await until("the cluster", lambda: not scheduler.problem)
        longhorn = scheduler._policy_sources._inputs.longhorn
        assert longhorn is not None
        cache, held = longhorn.cache, list[tuple[str, Any, Any]]()
        tell = cache.changed

        def hold(field: str, key: Any, value: Any) -> None:
            if field == "pods":
                held.append((field, key, value))
            else:
                tell(field, key, value)

        monkeypatch.setattr(cache, "changed", hold)
        await api.put(PODS, first)
        await until("the first pod", lambda: len(api.bindings) == 1)
        await until("its news", lambda: not scheduler._cache.assumed_nodes)
        await api.put(PODS, second)
        await until("the refusal", lambda: api.happened("FailedScheduling"))
        await until("the late news", lambda: any(value and value.node_name for _, _, value in held))
        for late in held:
            tell(*late)
        assert counted(longhorn) == []
    assert len(api.bindings) == 1
