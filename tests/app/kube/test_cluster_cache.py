"""The live view: complete before it is served, never older than a bound, and awake to what its readers wait for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from app.decisions.evaluator import Scheduling
from app.kube.cluster_cache import ClusterCache
from app.kube.reflector import Timing
from app.kube.resources import LONGHORN_NAMESPACE
from app.kube.watched_kinds import WATCHED, Watched
from scheduler_core.convert.snapshot_kinds import group_of
from scheduler_core.errors import ResolutionError
from scheduler_core.extender.filter import Options
from scheduler_core.model.verdict import Reason
from scheduler_core.volumes.resolve import MissingObjectError
from tests import builders as make
from tests.app.extender.test_node_reservation import NODES, cluster, db
from tests.builders import NOW
from tests.worlds.fake_api import FakeApi, Object, connected, event, failing, sending, silent, until

PATHS = {
    (entry.resource.group, entry.resource.kind): entry.resource.path(entry.namespace(LONGHORN_NAMESPACE))
    for entry in WATCHED
}
PODS, CLAIMS, REPLICAS, SETTINGS = (
    PATHS[key]
    for key in (("", "Pod"), ("", "PersistentVolumeClaim"), ("longhorn.io", "Replica"), ("longhorn.io", "Setting"))
)
CLASSES, VOLUMES = PATHS["storage.k8s.io", "StorageClass"], PATHS["longhorn.io", "Volume"]


def path_of(raw: Object) -> str:
    """Where an object is listed."""
    return PATHS[group_of(raw["apiVersion"]), raw["kind"]]


class Rig:
    """A fake API server with every kind, and the caches beside it."""

    def __init__(self, api: FakeApi, cache: ClusterCache) -> None:
        self.api = api
        self.cache = cache

    async def put(self, *objects: Object) -> None:
        """Creates or changes objects."""
        for raw in make.flat(*objects):
            await self.api.put(path_of(raw), raw)

    async def remove(self, raw: Object) -> None:
        """Deletes an object."""
        await self.api.remove(path_of(raw), raw["metadata"]["name"], raw["metadata"].get("namespace", ""))

    async def synced(self) -> None:
        """Waits until everything is listed and watched."""
        await until("every watch", lambda: self.api.open_watches == len(WATCHED))
        await until("the view", lambda: not self.cache.problem)

    async def reasons(self, number: int = 0) -> list[Reason]:
        """What is decided about a pod."""
        decision = await Scheduling(self.cache, Options()).filter(make.as_pod(db(number)), NODES)
        return list(decision.reasons)

    @property
    def held(self) -> Any:
        """The snapshot."""
        return self.cache.memory().view.snapshot


@asynccontextmanager
async def rigged(
    folder: Path, *objects: Object | list[Object], stale_after: float = 60, api: FakeApi | None = None, run: bool = True
) -> AsyncIterator[Rig]:
    """Running caches over some objects; without any over the two nodes."""
    api = api or FakeApi()
    for path in PATHS.values():
        api.add(path)
    for raw in make.flat(*(objects or (cluster(),))):
        api.add(path_of(raw), raw)
    async with connected(api, folder) as client:
        cache = ClusterCache(client, LONGHORN_NAMESPACE, Timing(time.monotonic, max), lambda: NOW, stale_after)
        task = asyncio.create_task(cache.run()) if run else None
        yield Rig(api, cache)
        if task is not None:
            assert not task.done(), task
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short pauses."""
    monkeypatch.setattr("app.kube.reflector._SHORTEST_BACKOFF", 0.02)
    monkeypatch.setattr("app.kube.reflector._LONGEST_BACKOFF", 0.1)
    monkeypatch.setattr("app.kube.reflector._MISSING_SECONDS", 0.1)


@pytest.mark.parametrize("entry", WATCHED, ids=lambda entry: entry.resource.label)
async def test_nothing_is_served_before_every_kind_has_been_listed(entry: Watched, tmp_path: Path) -> None:
    """Whichever is late; the readiness text names it."""
    api, late = FakeApi(), PATHS[entry.resource.group, entry.resource.kind]
    listed = asyncio.Event()
    usual = api._list

    async def waiting(request: Any) -> Any:
        if request.path == late:
            await listed.wait()
        return usual(request.path, dict(request.query))

    api.always["list"] = waiting
    async with rigged(tmp_path, api=api) as rig:
        others = [f"{other.resource.label} not listed yet" for other in WATCHED if other is not entry]
        await until(
            "the others", lambda: rig.cache.problem not in ("", *others) and api.open_watches == len(WATCHED) - 1
        )
        assert rig.cache.problem == f"{entry.resource.label} not listed yet"
        assert not rig.cache.filled
        with pytest.raises(RuntimeError):
            rig.cache.memory()
        assert rig.cache.settings == {}
        listed.set()
        await asyncio.wait_for(rig.cache.synced(), 5)
        assert rig.cache.problem == ""


async def test_before_it_runs_it_is_not_ready(tmp_path: Path) -> None:
    """And says so."""
    async with rigged(tmp_path, run=False) as rig:
        assert rig.cache.problem == "nodes not listed yet"


async def test_a_kind_that_may_not_be_listed_is_named(tmp_path: Path) -> None:
    """With what RBAC said, until it is allowed."""
    api = FakeApi()
    api.always["list"] = failing(403, 'cannot list resource "nodes"', "Forbidden")
    async with rigged(tmp_path, api=api) as rig:
        await until("the problem", lambda: "cannot list" in rig.cache.problem)
        assert rig.cache.problem == ('nodes not listed yet: GET /api/v1/nodes: cannot list resource "nodes" (HTTP 403)')
        api.always.clear()
        await rig.synced()


async def test_a_missing_kind_is_named_if_it_is_required(tmp_path: Path) -> None:
    """And ends the problem when it appears."""
    api = FakeApi()
    api.missing |= {REPLICAS, PATHS["longhorn.io", "BackingImage"]}
    async with rigged(tmp_path, api=api) as rig:
        await until("the problem", lambda: "knows no" in rig.cache.problem)
        assert rig.cache.problem == "the API server knows no replicas.longhorn.io: is Longhorn installed?"
        api.missing.discard(REPLICAS)
        await until("no problem, though there are no backing images", lambda: rig.cache.problem == "")
        assert dict(rig.held.backing_images) == {}


async def test_a_kind_that_goes_is_a_problem_again(tmp_path: Path) -> None:
    """Its objects are gone, so nothing must be decided."""
    async with rigged(tmp_path) as rig:
        await rig.synced()
        rig.api.missing.add(REPLICAS)
        rig.api.always["watch"] = failing(410, "old", "Expired")
        catching = asyncio.create_task(rig.cache.catch_up())  # disturbs the watches
        await until("the problem", lambda: "knows no replicas" in rig.cache.problem)
        await catching


async def test_a_server_that_is_silent_for_too_long_is_a_problem_until_it_is_heard_again(tmp_path: Path) -> None:
    """What it last said still stands in the view, and nothing is decided by it."""
    async with rigged(tmp_path, stale_after=2) as rig:
        await rig.synced()
        rig.api.always = {"watch": failing(503, "etcd has no leader"), "list": failing(503, "etcd has no leader")}
        catching = asyncio.create_task(rig.cache.catch_up())  # disturbs the watches
        await asyncio.sleep(0.1)
        assert rig.cache.problem == ""
        await until("the problem", lambda: rig.cache.problem)
        assert "not heard of for" in rig.cache.problem
        assert "etcd has no leader" in rig.cache.problem
        rig.api.always.clear()
        await asyncio.wait_for(catching, 5)
        assert rig.cache.problem == ""


async def test_a_server_that_accepts_watches_and_ends_them_at_once_is_a_problem(tmp_path: Path) -> None:
    """Nothing is heard by them."""
    async with rigged(tmp_path, stale_after=0.4) as rig:
        await rig.synced()
        rig.api.always["watch"] = sending()
        catching = asyncio.create_task(rig.cache.catch_up())
        await until("the problem", lambda: "ended the watch early" in rig.cache.problem)
        rig.api.always.clear()
        await asyncio.wait_for(catching, 5)
        await until("the end of it", lambda: rig.cache.problem == "")


async def test_what_was_deleted_while_nobody_listened_is_gone_after_the_next_list(tmp_path: Path) -> None:
    """And what was created is there."""
    async with rigged(tmp_path, cluster(), make.bound("old", 10), make.bound("kept", 10)) as rig:
        await rig.synced()
        assert set(rig.held.volumes) == {"vol-old", "vol-kept"}
        rig.api.always["watch"] = sending(event("ERROR", {"code": 410, "message": "too old"}))
        catching = asyncio.create_task(rig.cache.catch_up())
        await asyncio.sleep(0)
        for raw in make.bound("old", 10):
            await rig.remove(raw)
        await rig.put(*make.bound("new", 10))
        await asyncio.wait_for(catching, 5)
        await until("the new", lambda: set(rig.held.volumes) == {"vol-new", "vol-kept"})
        await until("the claims", lambda: {name for _, name in rig.held.claims} == {"new", "kept"})
        rig.api.always.clear()
        await rig.synced()


async def test_pods_without_claims_are_not_kept(tmp_path: Path) -> None:
    """Most pods of a cluster occupy no volume."""
    idle = make.pod(name="idle")
    async with rigged(tmp_path, cluster(), idle, make.pod("data-0", name="busy")) as rig:
        await rig.synced()
        assert set(rig.held.pods) == {("default", "busy")}
        await rig.put(make.pod(name="idle-too"), make.pod("data-0", name="busy-too"))
        await until("the other", lambda: set(rig.held.pods) == {("default", "busy"), ("default", "busy-too")})


async def test_waiting_readers_are_woken_by_what_they_wait_for_and_nothing_else(tmp_path: Path) -> None:
    """By changes, deletions and lists; a reader that has gone is forgotten."""
    async with rigged(tmp_path, cluster(), make.claim("a", 1), make.claim("b", 1)) as rig:
        await rig.synced()
        cache = rig.cache
        with (
            cache.listening(("claims", ("default", "a")), ("longhorn_nodes", "a")) as one,
            cache.listening(("claims", ("default", "b"))) as other,
        ):
            await rig.put(make.claim("a", 2))
            await until("the change", one.is_set)
            one.clear()
            await rig.put(make.longhorn_node("a", 50))
            await until("the other key", one.is_set)
            one.clear()
            await rig.put(make.longhorn_node("b", 50), make.claim("c", 1), make.kube_node("a", zone="x"))
            await until("the claim", lambda: ("default", "c") in rig.held.claims)
            assert not one.is_set()
            assert not other.is_set()
            await rig.remove(make.claim("a", 2))
            await until("the deletion", one.is_set)
            one.clear()
            cache.replaced("claims", {("default", "c"): rig.held.claims["default", "c"]})
            assert other.is_set()
            assert ("default", "b") not in rig.held.claims
            other.clear()
            cache.replaced("claims", {("default", "b"): rig.held.claims["default", "c"]})
            assert other.is_set()
        assert cache._listeners == {}


async def test_a_reader_may_name_the_same_object_twice(tmp_path: Path) -> None:
    """As a pod may mount one claim by two volumes."""
    async with rigged(tmp_path, cluster()) as rig:
        await rig.synced()
        key = "claims", ("default", "a")
        with rig.cache.listening(key, key, ("claims", ("default", "b"))):
            pass
        assert rig.cache._listeners == {}


class TestFetch:
    """Single reads of objects that a pod names and no watch has brought."""

    missing = MissingObjectError("PersistentVolumeClaim", "default/data-0", "pod default/db-0")

    async def test_a_claim_that_is_there(self, tmp_path: Path) -> None:
        """It is in the view, and the pod is decided about."""
        async with rigged(tmp_path) as rig:
            await rig.synced()
            rig.api.add(CLAIMS, make.claim("data-0", 10))  # nobody is told
            assert await rig.reasons() == [Reason.ROOM, Reason.ROOM]
            asked = [(path, query) for verb, path, query in rig.api.requests if verb == "get"]
            assert asked == [("/api/v1/namespaces/default/persistentvolumeclaims/data-0", {})]

    @pytest.mark.parametrize(
        ("kind", "name", "path"),
        [
            ("PersistentVolume", "pv-x", "/api/v1/persistentvolumes/pv-x"),
            ("StorageClass", "x", "/apis/storage.k8s.io/v1/storageclasses/x"),
            ("Longhorn volume", "x", "/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes/x"),
        ],
    )
    async def test_where_each_kind_is_looked_for(self, kind: str, name: str, path: str, tmp_path: Path) -> None:
        """And what is not there is not."""
        async with rigged(tmp_path) as rig:
            await rig.synced()
            assert not await rig.cache.fetch(MissingObjectError(kind, name, "somebody"))
            assert [where for verb, where, _ in rig.api.requests if verb == "get"] == [path]

    @pytest.mark.parametrize("name", ["", "default/", "/"])
    async def test_a_nameless_object_is_not_looked_for(self, name: str, tmp_path: Path) -> None:
        """Its path would be that of all of them."""
        async with rigged(tmp_path) as rig:
            await rig.synced()
            assert not await rig.cache.fetch(MissingObjectError("PersistentVolumeClaim", name, "a pod"))
            assert rig.api.count("get") == 0

    async def test_a_server_that_does_not_say_is_no_absence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A StorageClass nobody has seen may be Longhorn's: fail closed, and say why."""
        monkeypatch.setattr("app.kube.cluster_cache.FETCH_SECONDS", 0.2)
        async with rigged(tmp_path, cluster()[1:], make.claim("data-0", 10)) as rig:
            await rig.synced()
            rig.api.always["get"] = silent
            with pytest.raises(
                ResolutionError, match=r"cannot look for StorageClass longhorn: GET .*: no answer within 0.2 s"
            ):
                await rig.reasons()
            rig.api.always["get"] = failing(403, "cannot get it", "Forbidden")
            with pytest.raises(ResolutionError, match="cannot get it"):
                await rig.reasons()

    async def test_a_class_nobody_has_is_not_longhorns(self, tmp_path: Path) -> None:
        """As Kubernetes has it: the claim waits for somebody to make it."""
        async with rigged(tmp_path, cluster()[1:], make.claim("data-0", 10)) as rig:
            await rig.synced()
            assert await rig.reasons() == [Reason.NO_VOLUMES] * 2
            assert rig.api.count("get") == 1

    async def test_more_classes_than_are_looked_for_are_no_answer(self, tmp_path: Path) -> None:
        """Rather than taking the rest for somebody else's."""
        claims = [make.claim(f"c-{index}", 1, storage_class=f"class-{index}") for index in range(9)]
        async with rigged(tmp_path, cluster(), claims) as rig:
            await rig.synced()
            pod = make.as_pod(make.pod(*(f"c-{index}" for index in range(9))))
            with pytest.raises(ResolutionError, match="names 9 StorageClasses that are not there"):
                await Scheduling(rig.cache, Options()).filter(pod, NODES)

    async def test_an_object_that_cannot_be_read_is_no_crash(self, tmp_path: Path) -> None:
        """It is named."""
        async with rigged(tmp_path) as rig:
            await rig.synced()
            rig.api.add(CLAIMS, make.claim("data-0", "much"))
            with pytest.raises(ResolutionError, match=r"data-0: spec\.resources\.requests\.storage"):
                await rig.reasons()

    async def test_a_deletion_heard_meanwhile_counts(self, tmp_path: Path) -> None:
        """What was read before is not put back."""
        async with rigged(tmp_path) as rig:
            await rig.synced()
            claim = make.claim("data-0", 10)

            async def slow(request: Any) -> Any:
                answer = rig.api._get(request.path)
                await rig.put(claim)
                await rig.remove(claim)
                await until("the watch", lambda: rig.cache.standings["persistentvolumeclaims"].events == 2)
                return answer

            rig.api.add(CLAIMS, claim)
            rig.api.plans["get"].append(slow)
            assert await rig.cache.fetch(self.missing)
            assert dict(rig.held.claims) == {}


async def test_a_longhorn_setting_that_does_not_parse_fails_closed_and_recovers(tmp_path: Path) -> None:
    """No node is offered, with a reason of its own."""
    async with rigged(tmp_path, cluster(), make.claim("data-0", 10)) as rig:
        await rig.synced()
        assert await rig.reasons() == [Reason.ROOM] * 2
        await rig.put(make.setting("storage-over-provisioning-percentage", "plenty"))
        await until("the setting", lambda: rig.held.settings)
        assert await rig.reasons() == [Reason.BAD_SETTING] * 2
        await rig.put(make.setting("storage-over-provisioning-percentage", "1"))
        await until("the setting", lambda: rig.held.settings["storage-over-provisioning-percentage"] == "1")
        assert await rig.reasons() == [Reason.INSUFFICIENT_STORAGE] * 2
        await rig.remove(make.setting("storage-over-provisioning-percentage", "1"))
        await until("the setting", lambda: not rig.held.settings)
        assert await rig.reasons() == [Reason.ROOM] * 2


async def test_a_longhorn_setting_that_does_not_parse_at_start(tmp_path: Path) -> None:
    """Is no reason not to start."""
    bad = make.setting("storage-over-provisioning-percentage", "plenty")
    async with rigged(tmp_path, cluster(), make.claim("data-0", 10), bad) as rig:
        await rig.synced()
        assert await rig.reasons() == [Reason.BAD_SETTING] * 2


async def test_the_standings_tell_of_every_kind(tmp_path: Path) -> None:
    """By the names RBAC has for them."""
    async with rigged(tmp_path, cluster(), make.claim("data-0", "much")) as rig:
        await rig.synced()
        standings = rig.cache.standings
        assert set(standings) == {entry.resource.label for entry in WATCHED}
        assert [label for label, standing in standings.items() if standing.unreadable] == ["persistentvolumeclaims"]
        assert all(standing.behind(time.monotonic()) == 0 for standing in standings.values())


async def test_a_relist_of_equal_objects_changes_nothing_and_keeps_the_objects(tmp_path: Path) -> None:
    """So that it takes no memory, and wakes nobody."""
    async with rigged(tmp_path, cluster(), make.bound("data", 10), make.replica("r", "vol-data", "a", size=10)) as rig:
        await rig.synced()
        before, version = rig.held, rig.cache.memory().view.version
        rig.api.always["watch"] = sending(event("ERROR", {"code": 410, "message": "too old"}))
        with rig.cache.listening(("replicas", "r")) as heard:
            await rig.cache.catch_up()
            await until("the lists", lambda: all(standing.lists > 1 for standing in rig.cache.standings.values()))
            assert rig.cache.memory().view.version == version
            assert not heard.is_set()
        assert rig.held.replicas["r"] is before.replicas["r"]
        assert rig.held.longhorn_nodes["a"] is before.longhorn_nodes["a"]


async def test_equal_texts_are_held_once(tmp_path: Path) -> None:
    """Of whatever objects, inside whatever they hold."""
    disks = {"disk-1": make.disk(100, listed={"r-data-long-name": 1}, tags=["a-tag-like-others"])}
    objects = [make.kube_node("node-name", zone="zone-name"), make.longhorn_node("node-name", disks, zone="zone-name")]
    placed = make.replica("r-data-long-name", "vol-data", "node-name", diskSelector=["a-tag-like-others"])
    volume = make.volume("vol-data", diskSelector=["a-tag-like-others"])
    async with rigged(tmp_path, objects, placed, volume) as rig:
        await rig.synced()
        held = rig.held
        node, replica = held.longhorn_nodes["node-name"], held.replicas["r-data-long-name"]
        assert node.name is held.nodes["node-name"].name is replica.node_id
        assert node.zone is held.nodes["node-name"].labels["zone"]
        assert next(iter(node.disks[0].scheduled_replicas)) is replica.name
        assert node.disks[0].tags[0] is held.volumes["vol-data"].disk_selector[0]
        assert node.disks[0].uuid is replica.disk_id
        assert dict(held.longhorn_nodes) == make.snapshot(objects).longhorn_nodes


async def test_a_replica_that_cannot_be_read_stops_deciding_and_is_named(tmp_path: Path) -> None:
    """Its volume would look as if it were nowhere, and its bytes as if they were free."""
    bad = make.replica("r-bad", "vol-x", "a", size=10)
    bad["spec"]["volumeSize"] = "-5"
    async with rigged(tmp_path, cluster(), bad) as rig:
        await until("the problem", lambda: "r-bad" in rig.cache.problem)
        await rig.put(make.replica("r-bad", "vol-x", "a", size=10))
        await until("no problem", lambda: not rig.cache.problem)


async def test_what_could_not_be_taken_in_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect that shows once costs one answer, and none of the events."""

    def broken(*_: Any) -> Any:
        raise RuntimeError("once")

    async with rigged(tmp_path, cluster()) as rig:
        await rig.synced()
        monkeypatch.setattr("app.kube.cluster_cache.advance", broken)
        await rig.put(make.claim("late", 10))
        await until("the event", lambda: rig.cache.standings["persistentvolumeclaims"].events == 1)
        with pytest.raises(RuntimeError, match="once"):
            rig.cache.memory()
        monkeypatch.undo()
        assert ("default", "late") in rig.held.claims
