"""Sharded volumes: the size of a shard, and the volume that a StorageClass asks for."""

import pytest

from scheduler_core.errors import ResolutionError
from scheduler_core.longhorn.csi_driver import Provisioning, shard_size, shards_as_replicas, volume_for_claim
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model.kube import ClaimSpec
from scheduler_core.model.longhorn import BEST_EFFORT, DISABLED, DataLayout, Volume
from tests.builders import GI

MI = 1024**2
SHARDED = {
    "dataEngine": "v2",
    "dataLayout.type": "sharded",
    "dataLayout.dataChunks": "2",
    "dataLayout.parityChunks": "1",
}
# Values frozen in go-spdk-helper's own tests (pkg/spdk/types/ec_test.go): one volume's shard, and the reserve at the front of each shard.
FROZEN_SHARD = 35_926_310_912
FROZEN_RESERVES = {
    4: 8_347_648,
    8: 16_760_832,
    16: 33_587_200,
    32: 67_239_936,
    64: 134_479_872,
    128: 268_959_744,
    256: 537_919_488,
    512: 1_075_838_976,
    1024: 2_151_677_952,
}


def volume(**parameters: str) -> Volume:
    return volume_for_claim(
        "v", ClaimSpec(request=10 * GI), parameters, Provisioning(Settings.read(SETTINGS)), subject="it"
    )


SETTINGS = {"default-data-locality": "best-effort"}


def test_a_shard_is_as_large_as_longhorn_makes_it() -> None:
    assert shard_size(33 * GI, DataLayout(1, 1, 64)) == FROZEN_SHARD


@pytest.mark.parametrize(("strip_size_kb", "reserve"), FROZEN_RESERVES.items())
def test_the_reserve_follows_the_strip_size(strip_size_kb: int, reserve: int) -> None:
    without_reserve = FROZEN_SHARD - FROZEN_RESERVES[64]
    rounded = shard_size(33 * GI, DataLayout(1, 1, strip_size_kb)) - reserve
    assert abs(rounded - without_reserve) < 2 * MI


def test_shards_share_the_data() -> None:
    whole = shard_size(100 * GI, DataLayout(1, 1, 64))
    assert shard_size(100 * GI, DataLayout(4, 2, 64)) == shard_size(100 * GI, DataLayout(4, 4, 64))
    assert whole / 4 < shard_size(100 * GI, DataLayout(4, 2, 64)) < whole / 4 + 256 * MI


def test_a_sharded_volume_is_never_local() -> None:
    sharded = volume(**SHARDED, dataLocality="strict-local", numberOfReplicas="3")
    assert (sharded.data_layout, sharded.size) == (DataLayout(2, 1, 64), 10 * GI)
    assert (sharded.number_of_replicas, sharded.data_locality) == (1, DISABLED)


def test_it_takes_the_space_of_replicas_of_a_shard() -> None:
    sharded = volume(**SHARDED, nodeSelector="gold", diskSelector="fast")
    shards = shards_as_replicas(sharded)
    assert (shards.number_of_replicas, shards.size, shards.whole_size) == (
        3,
        shard_size(10 * GI, DataLayout(2, 1, 64)),
        10 * GI,
    )
    assert (shards.replica_soft_anti_affinity, shards.node_selector, shards.disk_selector) == (
        "disabled",
        (),
        ("fast",),
    )
    replicated = volume(dataEngine="v2")
    assert shards_as_replicas(replicated) is replicated


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"dataEngine": "v1"}, "dataLayout sharded needs dataEngine v2, not v1", id="v1"),
        pytest.param({"dataLayout.dataChunks": "0"}, "dataChunks 0 and parityChunks 1 are not", id="no data chunk"),
        pytest.param({"dataLayout.parityChunks": "0"}, "dataChunks 2 and parityChunks 0 are not", id="no parity chunk"),
        pytest.param({"dataLayout.parityChunks": "31"}, "at most 32 together", id="too many chunks"),
        pytest.param({"dataLayout.dataChunks": "two"}, "dataLayout.dataChunks 'two' is not", id="no number"),
        pytest.param({"dataLayout.stripSizeKB": "48"}, "stripSizeKB 48 is not a power of two", id="odd strip"),
        pytest.param({"dataLayout.stripSizeKB": "2048"}, "stripSizeKB 2048 is not a power of two", id="long strip"),
    ],
)
def test_a_layout_that_longhorn_refuses_is_an_error(parameters: dict[str, str], message: str) -> None:
    """The claim would stay unbound for ever."""
    with pytest.raises(ResolutionError, match=message):
        volume(**{**SHARDED, **parameters})


@pytest.mark.parametrize(
    ("version", "sharded"), [("v1.12.0", False), ("v1.12.1", True), ("v1.13.0-dev", True), ("", True)]
)
def test_an_older_longhorn_makes_replicas_of_such_a_class(version: str, sharded: bool) -> None:
    settings = Settings.read({"current-longhorn-version": version})
    parameters = {**SHARDED, "numberOfReplicas": "2", "dataLocality": "best-effort"}
    made = volume_for_claim("v", ClaimSpec(request=10 * GI), parameters, Provisioning(settings), subject="it")
    expected = (1, DISABLED, True) if sharded else (2, BEST_EFFORT, False)
    assert (made.number_of_replicas, made.data_locality, made.data_layout is not None) == expected


@pytest.mark.parametrize("kind", ["replicated", ""])
def test_a_replicated_layout_is_a_volume_of_replicas(kind: str) -> None:
    replicated = volume(**{**SHARDED, "dataLayout.type": kind}, numberOfReplicas="2")
    assert (replicated.data_layout, replicated.number_of_replicas) == (None, 2)
