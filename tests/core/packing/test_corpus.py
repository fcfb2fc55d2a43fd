"""Recorded packing problems: no answer is wrong, and hardly any is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler_core.packing.budget import Budget, PackingAnswer
from scheduler_core.packing.feasible import assign, fits
from scheduler_core.packing.items import Items
from tests.property.test_packing import holds

CORPUS = Path(__file__).parents[2] / "golden" / "packing" / "packing.jsonl"
INSTANCES: list[dict[str, Any]] = [json.loads(line) for line in CORPUS.read_text().splitlines()]
FAMILIES = sorted({instance["family"] for instance in INSTANCES})


def _masks(instance: dict[str, Any]) -> tuple[int, ...] | None:
    if instance["allowed"] is None:
        return None
    return tuple(sum(1 << disk for disk in disks) for disks in instance["allowed"])


@pytest.mark.parametrize("scale", [1, 1 << 30, 12_345_678_901], ids=["units", "GiB", "odd bytes"])
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_answers_are_reproduced(family: str, scale: int) -> None:
    budget = Budget(10**9)
    wrong = []
    for instance in (instance for instance in INSTANCES if instance["family"] == family):
        items = Items([size * scale for size in instance["volumes"]])
        free = tuple(room * scale for room in instance["disks"])
        expected = PackingAnswer.YES if instance["fits"] else PackingAnswer.NO
        if fits(items, free, _masks(instance), budget) is not expected:
            wrong.append(instance["id"])

    assert wrong == []
    assert budget.gave_up == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_plans_for_recorded_questions_hold(family: str) -> None:
    for instance in (instance for instance in INSTANCES if instance["family"] == family):
        masks = _masks(instance)
        plan = assign(Items(instance["volumes"]), tuple(instance["disks"]), masks, Budget())
        if isinstance(plan, PackingAnswer):
            assert (plan, instance["fits"]) == (PackingAnswer.NO, False), instance["id"]
            continue
        assert instance["fits"], instance["id"]
        assert holds(instance["volumes"], instance["disks"], masks, plan), instance["id"]
