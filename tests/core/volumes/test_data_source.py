"""A new volume gets its data from a claim, a snapshot, a backup or an image, and with it its size and its place."""

from typing import Any

import pytest

from scheduler_core.errors import MissingObjectError, ResolutionError
from scheduler_core.model.longhorn import Volume
from scheduler_core.volumes.resolve import resolve
from tests import builders as make
from tests.builders import GI, LONGHORN, Object, explained, reasons

NODE = make.longhorn_node("a")
SNAPSHOT = "snapshot.storage.k8s.io/v1"


def new_volume(*objects: Object | list[Object]) -> Volume:
    """The volume of the claim `x`."""
    (entry,) = resolve(make.as_pod(make.pod("x")), make.view(*objects)).volumes
    return entry.volume


def restored_claim(size: float | str = 10) -> Object:
    """A claim whose data is in the VolumeSnapshot `s`."""
    claim = make.claim("x", size)
    claim["spec"]["dataSource"] = {"kind": "VolumeSnapshot", "name": "s", "apiGroup": "snapshot.storage.k8s.io"}
    return claim


def snapshot_of(handle: str, driver: str = "driver.longhorn.io") -> list[Object]:
    """The VolumeSnapshot `s` and what it is bound to."""
    return [
        {
            "apiVersion": SNAPSHOT,
            "kind": "VolumeSnapshot",
            "metadata": {"name": "s", "namespace": "default"},
            "status": {"boundVolumeSnapshotContentName": "c"},
        },
        {
            "apiVersion": SNAPSHOT,
            "kind": "VolumeSnapshotContent",
            "metadata": {"name": "c"},
            "spec": {"driver": driver},
            "status": {"snapshotHandle": handle},
        },
    ]


def backup(size: str = str(20 * GI), image: str = "") -> Object:
    """The backup `b`."""
    status = {"volumeSize": size, "volumeBackingImageName": image}
    return {"apiVersion": LONGHORN, "kind": "Backup", "metadata": {"name": "b"}, "status": status}


def image(**spec: Any) -> Object:
    """A backing image `i` that exists."""
    return {"apiVersion": LONGHORN, "kind": "BackingImage", "metadata": {"name": "i"}, "spec": spec, "status": {}}


def test_a_clone_names_its_source() -> None:
    volume = new_volume(make.claim("x", 10, source="y"), make.bound("y", 10), make.storage_class())
    assert (volume.data_source, volume.size, volume.clone_mode) == ("vol://vol-y", 10 * GI, "")


REFUSED_CLONES: dict[str, tuple[list[Object], str]] = {
    "missing claim": ([], "bound PersistentVolumeClaim default/y does not exist"),
    "unbound claim": ([make.claim("y", 10)], "bound PersistentVolumeClaim default/y does not exist"),
    "claim of another size": (make.bound("y", 5), "it asks for 10Gi, while PersistentVolumeClaim default/y has 5Gi"),
    "missing PersistentVolume": (make.bound("y", 10)[::2], "PersistentVolume pv-y does not exist"),
    "missing volume": (make.bound("y", 10)[:2], "Longhorn volume vol-y does not exist"),
    "another driver": (
        [make.claim("y", 10, bound=True), make.persistent_volume("y", driver="other")],
        "PersistentVolumeClaim default/y, is no Longhorn volume",
    ),
    "another data engine": (make.bound("y", 10, dataEngine="v2"), "it has dataEngine v1, and its source vol-y has v2"),
}


@pytest.mark.parametrize(("objects", "message"), REFUSED_CLONES.values(), ids=REFUSED_CLONES.keys())
def test_a_clone_that_is_never_made_is_an_error(objects: list[Object], message: str) -> None:
    with pytest.raises(ResolutionError, match=message):
        new_volume(make.claim("x", 10, source="y"), *objects, make.storage_class())


def test_a_clone_of_a_volume_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(MissingObjectError, match="Longhorn volume y does not exist"):
        new_volume(make.claim("x", 10), make.storage_class(dataSource="vol://y"))


def test_a_linked_clone_of_a_snapshot_goes_where_its_source_is() -> None:
    nodes = [make.longhorn_node(name, {"d": make.disk(kind="block", filesystem="")}) for name in "ab"]
    source = [make.volume("y", 10, dataEngine="v2"), make.replica("r", "y", "b", disk="d", size=10, dataEngine="v2")]
    linked = make.storage_class(dataEngine="v2", cloneMode="linked-clone")
    objects = [make.kube_node("a"), make.kube_node("b"), restored_claim(), *snapshot_of("snap://y/s1"), *source, linked]
    assert reasons(explained(make.pod("x"), *nodes, *objects)) == {"a": "LINKED_CLONE", "b": "ROOM"}


def test_a_restored_volume_has_the_size_of_its_backup() -> None:
    objects = [restored_claim(), *snapshot_of("bak://volume/b"), make.storage_class()]
    assert new_volume(*objects, backup()).size == 20 * GI
    assert new_volume(*objects, backup("1048577")).size == 2 * 2**20


@pytest.mark.parametrize("objects", [[], [backup("")]], ids=["missing", "without a size yet"])
@pytest.mark.parametrize("url", ["s3://bucket@region/?backup=b&volume=v", "?volume=v&backup=b"])
def test_the_size_of_an_unknown_backup_is_not_guessed(objects: list[Object], url: str) -> None:
    with pytest.raises(ResolutionError, match="the size of backup b is not known"):
        new_volume(make.claim("x", 10), make.storage_class(fromBackup=url), *objects)


def test_a_url_without_backup_is_an_error() -> None:
    """It names nothing that could be restored."""
    with pytest.raises(ResolutionError, match="the size of the backup of parameter fromBackup is not known"):
        new_volume(make.claim("x", 10), make.storage_class(fromBackup="s3://bucket@region/"))


def test_an_empty_parameter_restores_nothing() -> None:
    assert new_volume(make.claim("x", 10), make.storage_class(fromBackup="")).size == 10 * GI


def test_a_restored_volume_has_the_backing_image_of_its_backup() -> None:
    objects = [make.claim("x", 10), backup(image="i"), image()]
    assert new_volume(*objects, make.storage_class(fromBackup="?backup=b")).backing_image == "i"
    other = make.storage_class(fromBackup="?backup=b", backingImage="j")
    assert new_volume(*objects, other).backing_image == "j"


def test_a_snapshot_may_be_a_backing_image() -> None:
    handle = "bi://backing?backingImageDataSourceType=download&backingImage=i&backingImageChecksum="
    objects = [restored_claim(), *snapshot_of(handle), make.storage_class(), image(sourceType="download")]
    assert new_volume(*objects).backing_image == "i"


REFUSED_SNAPSHOTS: dict[str, tuple[list[Object], str]] = {
    "missing": ([], "bound VolumeSnapshot default/s does not exist"),
    "not bound yet": (snapshot_of("snap://y/s1")[:1], "bound VolumeSnapshot default/s does not exist"),
    "without a handle": (snapshot_of(""), "bound VolumeSnapshot default/s does not exist"),
    "another driver": (snapshot_of("snap://y/s1", driver="other"), "is no snapshot, backup or image of Longhorn"),
    "unknown kind": (snapshot_of("tape://y/s1"), "is no snapshot, backup or image of Longhorn"),
    "without a name": (snapshot_of("snap://y"), "is no snapshot, backup or image of Longhorn"),
}


@pytest.mark.parametrize(("objects", "message"), REFUSED_SNAPSHOTS.values(), ids=REFUSED_SNAPSHOTS.keys())
def test_a_snapshot_that_longhorn_cannot_restore_is_an_error(objects: list[Object], message: str) -> None:
    """The claim would stay unbound for ever."""
    with pytest.raises(ResolutionError, match=message):
        new_volume(restored_claim(), *objects, make.storage_class())


def test_a_restored_volume_has_its_file_system_already() -> None:
    """So the least size of a new one on xfs does not matter."""
    xfs = make.storage_class(fsType="xfs")
    volume = new_volume(restored_claim("100Mi"), *snapshot_of("snap://y/s1"), make.volume("y", 1), xfs)
    assert volume.size == 100 * 2**20


DOWNLOAD: dict[str, Any] = {
    "backingImage": "i",
    "backingImageDataSourceType": "download",
    "backingImageDiskSelector": "fast",
    "backingImageNodeSelector": "storage",
}


def test_an_image_that_is_created_with_the_volume_has_the_selectors_of_its_class() -> None:
    volume = new_volume(make.claim("x", 10), make.storage_class(**DOWNLOAD))
    assert (volume.backing_image, volume.disk_selector, volume.node_selector) == ("", ("fast",), ("storage",))


def test_an_image_that_exists_has_its_own_selectors() -> None:
    volume = new_volume(make.claim("x", 10), make.storage_class(**DOWNLOAD), image(sourceType="download"))
    assert (volume.backing_image, volume.disk_selector, volume.node_selector) == ("i", (), ())


def test_an_image_of_another_type_is_an_error() -> None:
    with pytest.raises(ResolutionError, match="backing image i is of type upload, not 'download'"):
        new_volume(make.claim("x", 10), make.storage_class(**DOWNLOAD), image(sourceType="upload"))
