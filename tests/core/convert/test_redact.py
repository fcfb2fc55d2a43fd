"""What is shown to strangers: what decides, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler_core.convert.redact import PARAMETERS, PROVISIONER, published
from scheduler_core.convert.snapshot_kinds import KINDS, group_of
from scheduler_core.errors import ObjectError
from scheduler_core.longhorn.provisioning import DRIVER, volume_for_claim
from scheduler_core.longhorn.settings import Settings
from scheduler_core.model import kube
from tests import builders as make
from tests.builders import Object


def cut(raw: Object) -> Object:
    """The object as it is shown."""
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    return published(kind, raw["apiVersion"], json.dumps(raw).encode())


EVERY_KIND: list[Object] = [
    make.storage_class(default=True),
    make.kube_node("a", zone="x"),
    make.longhorn_node("a"),
    make.claim("data", 5, owners=[{"kind": "Pod", "name": "p", "uid": "u"}]),
    *make.bound("kept", 5),
    make.replica("r", "vol-kept", "a", deleting=True),
    make.pod("data", ephemeral={"scratch": make.ephemeral_spec(3)}, deleting=True),
    make.setting("replica-soft-anti-affinity", "true"),
]


@pytest.mark.parametrize("raw", EVERY_KIND, ids=lambda raw: raw["kind"])
def test_what_is_shown_means_the_same(raw: Object) -> None:
    """It is read as the same model, and cut to itself."""
    kind = KINDS[group_of(raw["apiVersion"]), raw["kind"]]
    shown = cut(raw)
    assert kind.read(shown) == kind.read(raw)
    assert cut(shown) == shown
    assert (shown["apiVersion"], shown["kind"]) == (raw["apiVersion"], raw["kind"])


@pytest.mark.parametrize("raw", EVERY_KIND, ids=lambda raw: raw["kind"])
@given(
    extra=st.dictionaries(st.sampled_from(["env", "data", "secret", "labels", "managedFields", "x"]), st.just("SECRET"))
)
def test_what_is_unknown_is_not_shown(raw: Object, extra: Mapping[str, str]) -> None:
    """Wherever it stands; labels are shown of nodes alone."""
    metadata = {**raw["metadata"], **{key: value for key, value in extra.items() if key != "labels"}}
    if raw["kind"] != "Node" or raw["apiVersion"] != "v1":
        metadata["labels"] = {"label": "SECRET"}
    metadata["annotations"] = {**metadata.get("annotations", {}), "note": "SECRET"}
    spec = (
        {"spec": {**raw["spec"], **{key: text for key, text in extra.items() if key != "labels"}}}
        if "spec" in raw
        else {}
    )
    assert "SECRET" not in json.dumps(cut({**raw, **extra, **spec, "metadata": metadata}))


class _Recording(dict[str, str]):
    """Parameters that remember which of them were asked for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> str:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)

    def get(self, key: str, default: Any = None) -> Any:
        """As a dictionary's."""
        self.asked.add(key)
        return super().get(key, default)

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("parameters are asked for by name, so that the list of those shown can be complete")


def test_every_parameter_that_decides_is_shown() -> None:
    """And no other."""
    asked: set[str] = set()
    for given_parameters in (
        {},
        {"dataLocality": "strict-local", "share": "true"},
        {"backingImage": "x", "cloneMode": "y"},
    ):
        parameters = _Recording(given_parameters)
        claim = kube.ClaimSpec(request=1, source_volume="v" if given_parameters else "")
        volume_for_claim("x", claim, parameters, Settings(), subject="it")
        asked |= parameters.asked
    assert asked - {"cloneMode"} <= PARAMETERS
    assert asked | {"cloneMode"} == PARAMETERS | {"cloneMode"}
    assert PROVISIONER == DRIVER


def test_what_cannot_be_read_is_not_shown() -> None:
    """Nobody could read it there either."""
    with pytest.raises(ObjectError, match="storage"):
        cut(make.claim("x", "much"))
    with pytest.raises(ObjectError):
        cut({**make.claim("x", 1), "spec": 3})


def test_nothing_absent_is_written() -> None:
    """The file is as short as it can be."""
    assert "null" not in json.dumps([cut(raw) for raw in EVERY_KIND])
