"""The live cluster's cache: complete before it is used, never older than a bound, and its listeners learn of changes."""

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.evaluator import Evaluator
from app.kube.cluster_cache import WATCHED, WatchedKind
from scheduler_core.backoff import Backoff
from scheduler_core.decide.decision import FilterOptions
from scheduler_core.errors import MissingObjectError, ResolutionError
from scheduler_core.model.verdict import Reason
from tests import builders as make
from tests.worlds.cluster_cache import CLAIMS, LONGHORN_NODES, PATHS, PODS, REPLICAS, cached_cluster, synced_cluster
from tests.worlds.fake_api import FakeApi, event, failing, sending, silent, until
from tests.worlds.two_nodes import NODES, two_nodes


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.kube.reflector._BACKOFF", Backoff(0.02, 0.1))
    monkeypatch.setattr("app.kube.reflector._MISSING_RETRY_INTERVAL", 0.1)


@pytest.mark.parametrize("entry", WATCHED, ids=lambda entry: entry.resource.label)
async def test_there_is_no_state_before_every_kind_has_been_listed(entry: WatchedKind, tmp_path: Path) -> None:
    """Any kind may be late; the problem names it."""
    api = FakeApi()
    late_path = PATHS[entry.resource.group, entry.resource.kind]
    listed = asyncio.Event()
    answer_list = api.answer_list

    async def answer_late(request: Any) -> Any:
        if request.path == late_path:
            await listed.wait()
        return answer_list(request.path, dict(request.query))

    api.always["list"] = answer_late
    async with cached_cluster(tmp_path, api=api) as world:
        others = [f"{watched.resource.label} not listed yet" for watched in WATCHED if watched is not entry]
        await until(
            "the others", lambda: world.cache.problem not in ("", *others) and api.open_watches == len(WATCHED) - 1
        )
        assert world.cache.problem == f"{entry.resource.label} not listed yet"
        assert not world.cache.has_synced
        with pytest.raises(RuntimeError):
            world.cache.state()
        assert world.cache.settings == {}
        listed.set()
        await asyncio.wait_for(world.cache.wait_for_sync(), 5)
        assert world.cache.problem == ""


async def test_reads_share_a_state_until_something_changes_or_time_passes(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path) as world:
        first = world.cache.state()
        world.time += timedelta(milliseconds=99)
        assert world.cache.state() is first
        world.time += timedelta(milliseconds=1)
        later = world.cache.state()
        assert (later is first, later.view.cluster.now) == (False, world.time)
        world.time -= timedelta(hours=1)  # the clock was set
        assert world.cache.state().view.cluster.now == world.time
        before = world.cache.state()
        await world.put(make.claim("new", 1))
        await until("the claim", lambda: world.cache.state() is not before)
        assert ("default", "new") in world.snapshot.claims


async def test_the_latest_state_is_the_one_that_was_read_last(tmp_path: Path) -> None:
    async with cached_cluster(tmp_path) as world:
        assert (world.cache.latest_state, world.cache.problem) == (None, "nodes not listed yet")
        await world.wait_for_sync()
        before = world.cache.state()
        assert world.cache.latest_state is before
        await world.api.put(REPLICAS, make.replica("r-1", "v"))
        await until("the replica", lambda: "r-1" in world.cache.state().view.snapshot.replicas)
        after = world.cache.state()
        assert world.cache.latest_state is after
        assert after is not before


async def test_reading_the_settings_applies_no_other_change(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path) as world:
        before = world.cache.state()
        await world.api.put(REPLICAS, make.replica("r-1", "v"))
        await world.cache.catch_up()
        assert (dict(world.cache.settings), world.cache.latest_state) == ({}, before)
        await world.put(make.setting("default-replica-count", "2"))
        await world.cache.catch_up()
        assert dict(world.cache.settings) == {"default-replica-count": "2"}
        assert world.cache.latest_state is not before


async def test_a_missing_kind_is_named_if_it_is_required(tmp_path: Path) -> None:
    api = FakeApi()
    api.missing |= {REPLICAS, PATHS["longhorn.io", "BackingImage"]}
    async with cached_cluster(tmp_path, api=api) as world:
        await until("the problem", lambda: "knows no" in world.cache.problem)
        assert world.cache.problem == "the API server knows no replicas.longhorn.io: is Longhorn installed?"
        api.missing.discard(REPLICAS)
        await until("no problem, though there are no backing images", lambda: world.cache.problem == "")
        assert dict(world.snapshot.backing_images) == {}


async def test_a_kind_that_is_removed_is_a_problem_again(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path) as world:
        world.api.missing.add(REPLICAS)
        world.api.always["watch"] = failing(410, "old", "Expired")
        catching = asyncio.create_task(world.cache.catch_up())  # interrupts the watches
        await until("the problem", lambda: "knows no replicas" in world.cache.problem)
        await catching
        assert "knows no replicas" in world.cache.problem


async def test_a_cache_reaches_what_another_one_had(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path) as world:
        versions = dict(world.cache.versions)
        await world.api.bookmark(REPLICAS)
        await world.api.put(REPLICAS, make.replica("r-1", "v"))
        await until("the replica", lambda: world.cache.versions["replicas"] != versions["replicas"])
        assert await world.cache.reach(versions, 0.0)
        assert await world.cache.reach(world.cache.versions, 0.0)
        assert not await world.cache.reach({}, 0.0), "a kind that the other one did not have"
        later = {**versions, "replicas": str(world.api.version + 1)}
        assert not await world.cache.reach(later, 0.05)
        reaching = asyncio.create_task(world.cache.reach(later, 5.0))
        await asyncio.sleep(0.05)
        await world.api.put(REPLICAS, make.replica("r-2", "v"))
        assert await reaching


async def test_a_bookmark_is_no_change(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path) as world:
        before = dict(world.cache.versions)
        await world.api.put("/api/v1/nodes", make.kube_node("other"))
        for _ in range(3):
            await world.api.bookmark(REPLICAS)
        await until("the node", lambda: world.cache.versions != before)
        await asyncio.sleep(0.1)
        assert world.cache.versions["replicas"] == before["replicas"]


async def test_a_server_that_fails_for_too_long_is_a_problem_until_it_answers_again(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path, stale_after=2) as world:
        world.api.always = {"watch": failing(503, "etcd has no leader"), "list": failing(503, "etcd has no leader")}
        catching = asyncio.create_task(world.cache.catch_up())  # interrupts the watches
        await asyncio.sleep(0.1)
        assert world.cache.problem == ""
        await until("the problem", lambda: world.cache.problem)
        assert "not heard of for" in world.cache.problem
        assert "etcd has no leader" in world.cache.problem
        world.api.always.clear()
        await asyncio.wait_for(catching, 5)
        assert world.cache.problem == ""


async def test_a_server_that_accepts_watches_and_ends_them_at_once_is_a_problem(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path, stale_after=0.4) as world:
        world.api.always["watch"] = sending()
        catching = asyncio.create_task(world.cache.catch_up())
        await until("the problem", lambda: "ended the watch early" in world.cache.problem)
        world.api.always.clear()
        await asyncio.wait_for(catching, 5)
        await until("the end of it", lambda: world.cache.problem == "")
        assert world.api.open_watches == len(WATCHED)


async def test_objects_deleted_while_no_watch_was_open_are_gone_after_the_next_list(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path, two_nodes(), make.bound("old", 10), make.bound("old-2", 10)) as world:
        assert set(world.snapshot.volumes) == {"vol-old", "vol-old-2"}
        world.api.always["watch"] = sending(event("ERROR", {"code": 410, "message": "too old"}))
        catching = asyncio.create_task(world.cache.catch_up())
        await asyncio.sleep(0)
        for raw in make.bound("old", 10):
            await world.remove(raw)
        await world.put(*make.bound("new", 10))
        await asyncio.wait_for(catching, 5)
        await until("the new", lambda: set(world.snapshot.volumes) == {"vol-new", "vol-old-2"})
        await until("the claims", lambda: {name for _, name in world.snapshot.claims} == {"new", "old-2"})
        world.api.always.clear()
        await world.wait_for_sync()


async def test_listeners_are_woken_by_their_objects_only(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path, two_nodes(), make.claim("a", 1), make.claim("b", 1)) as world:
        cache = world.cache
        with (
            # One object may be named twice.
            cache.listening(*[("claims", ("default", "a"))] * 2, ("longhorn_nodes", "a")) as a_or_node_a,
            cache.listening(("claims", ("default", "b"))) as b,
        ):
            await world.put(make.claim("a", 2))
            await until("the change", a_or_node_a.is_set)
            a_or_node_a.clear()
            await world.put(make.longhorn_node("a", 50))
            await until("the other key", a_or_node_a.is_set)
            a_or_node_a.clear()
            await world.put(make.longhorn_node("b", 50), make.claim("c", 1), make.kube_node("a", zone="x"))
            await until("the claim", lambda: ("default", "c") in world.snapshot.claims)
            assert not a_or_node_a.is_set()
            assert not b.is_set()
            await world.remove(make.claim("a", 2))
            await until("the deletion", a_or_node_a.is_set)
            a_or_node_a.clear()
            cache["claims"].replace({("default", "c"): world.snapshot.claims["default", "c"]})
            assert b.is_set()
            assert ("default", "b") not in world.snapshot.claims
            b.clear()
            cache["claims"].replace({("default", "b"): world.snapshot.claims["default", "c"]})
            assert b.is_set()
        assert cache.listeners == {}


class TestFetch:
    """Single reads of objects that a pod names and no watch has delivered."""

    missing = MissingObjectError("PersistentVolumeClaim", "default/data-0", "pod default/db-0")

    async def test_a_fetched_claim_is_in_the_state(self, tmp_path: Path) -> None:
        async with synced_cluster(tmp_path) as world:
            world.api.add(CLAIMS, make.claim("data-0", 10))  # without a watch event
            assert await world.reasons() == [Reason.ROOM, Reason.ROOM]
            fetches = [(path, query) for verb, path, query in world.api.requests if verb == "get"]
            assert fetches == [("/api/v1/namespaces/default/persistentvolumeclaims/data-0", {})]

    @pytest.mark.parametrize(
        ("kind", "name", "paths"),
        [
            ("PersistentVolume", "pv-x", ["/api/v1/persistentvolumes/pv-x"]),
            ("StorageClass", "x", ["/apis/storage.k8s.io/v1/storageclasses/x"]),
            ("Longhorn volume", "x", ["/apis/longhorn.io/v1beta2/namespaces/longhorn-system/volumes/x"]),
            # The path would be that of the whole collection.
            *(("PersistentVolumeClaim", name, []) for name in ("", "default/", "/")),
        ],
    )
    async def test_an_object_is_fetched_from_its_path(
        self, kind: str, name: str, paths: list[str], tmp_path: Path
    ) -> None:
        async with synced_cluster(tmp_path) as world:
            assert not await world.cache.fetch(MissingObjectError(kind, name, "a pod"))
            assert [where for verb, where, _ in world.api.requests if verb == "get"] == paths

    async def test_only_an_answer_makes_an_object_absent(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A StorageClass that could not be read may be Longhorn's."""
        monkeypatch.setattr("app.kube.cluster_cache.FETCH_TIMEOUT", 0.2)
        async with synced_cluster(tmp_path, two_nodes()[1:], make.claim("data-0", 10)) as world:
            world.api.always["get"] = silent
            with pytest.raises(
                ResolutionError, match=r"cannot look for StorageClass longhorn: GET .*: no answer within 0.2 s"
            ):
                await world.reasons()
            world.api.always["get"] = failing(403, "cannot get it", "Forbidden")
            with pytest.raises(ResolutionError, match="cannot get it"):
                await world.reasons()
            # As in Kubernetes, a claim waits for a class that does not exist.
            del world.api.always["get"]
            assert await world.reasons() == [Reason.NO_VOLUMES] * 2
            assert world.api.count("get") == 3

    async def test_more_storage_classes_than_are_fetched_are_an_error(self, tmp_path: Path) -> None:
        """They must not pass for another driver's."""
        claims = [make.claim(f"c-{index}", 1, storage_class=f"class-{index}") for index in range(9)]
        async with synced_cluster(tmp_path, two_nodes(), claims) as world:
            pod = make.as_pod(make.pod(*(f"c-{index}" for index in range(9))))
            with pytest.raises(ResolutionError, match="names 9 StorageClasses that are not there"):
                await Evaluator(world.cache, FilterOptions()).decide(pod, NODES)

    async def test_a_pod_that_no_watch_has_delivered_is_read_and_not_put_into_the_state(self, tmp_path: Path) -> None:
        """A watch that is behind may still have to deliver the end of its predecessor."""
        async with synced_cluster(tmp_path) as world:
            world.api.add(PODS, make.pod("data-0", name="db-0", uid="uid-0"))
            pod = await world.cache.read_pod("default", "db-0")
            assert pod is not None
            assert pod.uid == "uid-0"
            assert not world.cache.state().view.snapshot.pods
            # Nor does a pod exist whose path would be that of a collection.
            for namespace, name in (("default", "absent"), ("default", ""), ("", "db-0")):
                assert await world.cache.read_pod(namespace, name) is None

    async def test_a_fetched_object_that_cannot_be_read_is_an_error(self, tmp_path: Path) -> None:
        async with synced_cluster(tmp_path) as world:
            world.api.add(CLAIMS, make.claim("data-0", "much"))
            with pytest.raises(ResolutionError, match=r"data-0: spec\.resources\.requests\.storage"):
                await world.reasons()

    async def test_a_deletion_that_is_delivered_during_a_fetch_counts(self, tmp_path: Path) -> None:
        async with synced_cluster(tmp_path) as world:
            claim = make.claim("data-0", 10)

            async def answer_after_deletion(request: Any) -> Any:
                answer = world.api.answer_get(request.path)
                await world.put(claim)
                await world.remove(claim)
                await until("the watch", lambda: world.cache.statuses["persistentvolumeclaims"].events == 2)
                return answer

            world.api.add(CLAIMS, claim)
            world.api.plans["get"].append(answer_after_deletion)
            assert await world.cache.fetch(self.missing)
            assert dict(world.snapshot.claims) == {}


async def test_a_longhorn_setting_that_does_not_parse_fails_closed_and_recovers(tmp_path: Path) -> None:
    """It is no reason not to start."""
    name = "storage-over-provisioning-percentage"
    bad = make.setting(name, "plenty")
    async with synced_cluster(tmp_path, two_nodes(), make.claim("data-0", 10), bad) as world:
        assert await world.reasons() == [Reason.BAD_SETTING] * 2
        await world.put(make.setting(name, "1"))
        await until("the setting", lambda: world.snapshot.settings[name] == "1")
        assert await world.reasons() == [Reason.INSUFFICIENT_STORAGE] * 2
        await world.put(bad)
        await until("the setting", lambda: world.snapshot.settings[name] == "plenty")
        assert await world.reasons() == [Reason.BAD_SETTING] * 2
        await world.remove(bad)
        await until("the setting", lambda: not world.snapshot.settings)
        assert await world.reasons() == [Reason.ROOM] * 2


async def test_every_kind_has_a_status(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path, two_nodes(), make.claim("data-0", "much")) as world:
        statuses = world.cache.statuses
        assert set(statuses) == {entry.resource.label for entry in WATCHED}
        assert [label for label, status in statuses.items() if status.unreadable] == ["persistentvolumeclaims"]
        assert all(status.behind(time.monotonic()) == 0 for status in statuses.values())


async def test_a_node_that_cannot_be_read_any_more_is_left_out(tmp_path: Path) -> None:
    """As it would be after a restart: leader and successor must not differ."""
    async with synced_cluster(tmp_path, two_nodes(), make.claim("data-0", 10)) as world:
        broken = make.longhorn_node("a", 100)
        broken["status"]["diskStatus"] = "none"
        await world.api.put(LONGHORN_NODES, broken)
        await until("node a is left out", lambda: "a" not in world.cache.state().view.snapshot.longhorn_nodes)
        assert [entry.split(":")[0] for entry in world.cache.unreadable] == ["nodes.longhorn.io"]
        await world.api.put(LONGHORN_NODES, make.longhorn_node("a", 100))
        await until("node a is there", lambda: "a" in world.cache.state().view.snapshot.longhorn_nodes)
        assert world.cache.unreadable == []


async def test_a_relist_of_equal_objects_changes_nothing_and_keeps_the_objects(tmp_path: Path) -> None:
    async with synced_cluster(
        tmp_path, two_nodes(), make.bound("data", 10), make.replica("r", "vol-data", "a", size=10)
    ) as world:
        before = world.snapshot
        version = world.cache.state().view.version
        world.api.always["watch"] = sending(event("ERROR", {"code": 410, "message": "too old"}))
        with world.cache.listening(("replicas", "r")) as changed:
            await world.cache.catch_up()
            await until("the lists", lambda: all(status.lists > 1 for status in world.cache.statuses.values()))
            assert world.cache.state().view.version == version
            assert not changed.is_set()
        assert world.snapshot.replicas["r"] is before.replicas["r"]
        assert world.snapshot.longhorn_nodes["a"] is before.longhorn_nodes["a"]


async def test_equal_texts_are_stored_once(tmp_path: Path) -> None:
    """They may be in objects of any kind, at any depth."""
    disks = {"disk-1": make.disk(100, listed={"r-data-long-name": 1}, tags=["a-tag-like-others"])}
    objects = [make.kube_node("node-name", zone="zone-name"), make.longhorn_node("node-name", disks, zone="zone-name")]
    placed = make.replica("r-data-long-name", "vol-data", "node-name", diskSelector=["a-tag-like-others"])
    volume = make.volume("vol-data", diskSelector=["a-tag-like-others"])
    async with synced_cluster(tmp_path, objects, placed, volume) as world:
        snapshot = world.snapshot
        node = snapshot.longhorn_nodes["node-name"]
        replica = snapshot.replicas["r-data-long-name"]
        assert node.name is snapshot.nodes["node-name"].name is replica.node_id
        assert node.zone is snapshot.nodes["node-name"].labels["zone"]
        assert next(iter(node.disks[0].scheduled_replicas)) is replica.name
        assert node.disks[0].tags[0] is snapshot.volumes["vol-data"].disk_selector[0]
        assert node.disks[0].uuid is replica.disk_id
        assert dict(snapshot.longhorn_nodes) == make.snapshot(objects).longhorn_nodes


async def test_a_replica_that_cannot_be_read_is_a_problem_that_names_it(tmp_path: Path) -> None:
    """Its volume would look unplaced, and its space free."""
    bad = make.replica("r-bad", "vol-x", "a", size=10)
    bad["spec"]["volumeSize"] = "-5"
    async with cached_cluster(tmp_path, two_nodes(), bad) as world:
        await until("the problem", lambda: "r-bad" in world.cache.problem)
        await world.put(make.replica("r-bad", "vol-x", "a", size=10))
        await until("no problem", lambda: not world.cache.problem)
        assert [replica.name for replica in world.snapshot.replicas.values()] == ["r-bad"]


async def test_events_survive_a_failed_update_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("once")

    async with synced_cluster(tmp_path, two_nodes()) as world:
        monkeypatch.setattr("scheduler_core.evaluation.cluster_state.update", fail)
        await world.put(make.claim("late", 10))
        await until("the event", lambda: world.cache.statuses["persistentvolumeclaims"].events == 1)
        with pytest.raises(RuntimeError, match="once"):
            world.cache.state()
        monkeypatch.undo()
        assert ("default", "late") in world.snapshot.claims


async def test_observers_receive_every_object_as_it_is_delivered(tmp_path: Path) -> None:
    async with synced_cluster(tmp_path, two_nodes(), make.replica("old", "v", "a")) as world:
        delivered: list[tuple[object | None, object | None]] = []
        world.cache.subscribe("replicas", lambda before, after: delivered.append((before, after)))
        await world.put(make.replica("r", "v"))
        await world.put(make.replica("r", "v", "a"), make.longhorn_node("c"))
        await world.remove(make.replica("r", "v"))
        await until("the deletion", lambda: len(delivered) == 3)
        disks = [tuple(getattr(value, "disk_id", None) for value in pair) for pair in delivered]
        assert disks == [(None, ""), ("", "a-disk-1"), ("a-disk-1", None)]
