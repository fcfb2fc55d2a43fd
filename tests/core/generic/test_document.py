"""docs/generic-scheduler.md and the examples match the code."""

import re

from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES
from tests.core.generic.tables import DOCUMENT, POLICIES, SAMPLES, TABLES, cluster, decisions, fill_tables


def test_the_document_has_the_current_tables() -> None:
    text = DOCUMENT.read_text()
    assert fill_tables(text) == text
    assert set(re.findall(r"<!-- table: ([a-z-]+) -->", text)) == set(TABLES)


def test_every_rule_is_documented_in_the_registry_s_order() -> None:
    rules = DOCUMENT.read_text().partition("## Predicates")[2].partition("## Policy file")[0]
    rows = re.findall(r"^\| (any, with )?`([A-Za-z]+)`", rules, re.MULTILINE)
    names = {prefix: [name for row_prefix, name in rows if row_prefix == prefix] for prefix in ("", "any, with ")}
    assert names[""] == [*PREDICATES.static, *PRIORITIES.static]
    assert names["any, with "] == [*PREDICATES.configurable, *PRIORITIES.configurable]


def test_every_example_is_documented() -> None:
    text = DOCUMENT.read_text()
    assert [path.name for path in POLICIES.glob("*.json") if f"{path.name}" not in text] == []


def values_of_label(name: str, level: str) -> list[str]:
    nodes = cluster()[0].nodes
    return [nodes[decision.node].node.labels.get(level, "") for decision in decisions(name)]


def test_all_pods_of_all_samples_are_placed() -> None:
    assert all(decision.node for name in SAMPLES for decision in decisions(name))


def test_region_zone_rack_keeps_a_zone_and_spreads_over_its_racks() -> None:
    assert {*values_of_label("region-zone-rack", "region"), *values_of_label("region-zone-rack", "zone")} == {
        "r1",
        "z1",
    }
    assert sorted(values_of_label("region-zone-rack", "rack")) == ["s1", "s1", "s2", "s2", "s3", "s3"]


def test_city_building_room_keeps_a_city_and_spreads_over_rooms() -> None:
    assert set(values_of_label("city-building-room", "city")) == {"c1"}
    assert set(values_of_label("city-building-room", "building")[:2]) == {"b1", "b2"}
    assert sorted(values_of_label("city-building-room", "room")) == ["m1", "m1", "m2", "m2", "m3", "m3"]


def test_require_region_stays_on_nodes_with_region_and_prefers_those_with_zone() -> None:
    assert "" not in values_of_label("require-region", "region")
    assert "" not in values_of_label("require-region", "zone")


def test_combined_keeps_a_region_avoids_buildings_and_spreads_over_zones() -> None:
    assert set(values_of_label("combined", "region")) == {"r1"}
    assert set(values_of_label("combined", "building")) == {""}
    assert values_of_label("combined", "zone") == ["z1", "z2"] * 3
