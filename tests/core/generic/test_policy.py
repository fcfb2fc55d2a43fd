"""The policy file: what it may say, what it may not, and how that is told."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import Any

import pytest

from scheduler_core.errors import CoreError
from scheduler_core.generic.cycle_state import Argument
from scheduler_core.generic.policy import (
    DEFAULT_POLICY,
    EXTENDER_POLICY,
    Policy,
    PolicyError,
    PolicyPredicate,
    PolicyPriority,
    parse_policy,
)
from scheduler_core.generic.policy_file import PolicyStage
from scheduler_core.generic.rule_registry import PREDICATES, PRIORITIES
from tests.core.generic.tables import POLICIES, policy

PORTS = {"name": "PodFitsPorts"}
EQUAL = {"name": "EqualPriority", "weight": 1}
ZONE = {"name": "Zone", "argument": {"serviceAffinity": {"labels": ["zone"]}}}
RACK = {"name": "RackSpread", "weight": 2, "argument": {"serviceAntiAffinity": {"label": "rack"}}}


def read(predicates: object = (PORTS,), priorities: object = (EQUAL,), **more: object) -> Policy:
    """A policy of these sections."""
    return parse_policy(json.dumps({"predicates": predicates, "priorities": priorities, **more}).encode())


def refused(predicates: object = (PORTS,), priorities: object = (EQUAL,), **more: object) -> PolicyError:
    """The error about a policy of these sections."""
    with pytest.raises(PolicyError) as caught:
        read(predicates, priorities, **more)
    return caught.value


def given(arguments: dict[str, Any], name: str = "Mine", **more: object) -> dict[str, Any]:
    """An entry with an argument."""
    return {"name": name, "argument": arguments, **more}


def test_a_policy_is_read_entry_by_entry() -> None:
    """Static rules by their names, configurable ones by their arguments."""
    assert read([PORTS, ZONE], [EQUAL, RACK], kind="Policy", version="v1") == Policy(
        (
            PolicyPredicate("PodFitsPorts", "PodFitsPorts"),
            PolicyPredicate("Zone", "serviceAffinity", Argument(("zone",))),
        ),
        (
            PolicyPriority("EqualPriority", "EqualPriority", 1),
            PolicyPriority("RackSpread", "serviceAntiAffinity", 2, Argument(("rack",))),
        ),
    )


@pytest.mark.parametrize(
    ("section", "entry", "argument"),
    [
        (0, given({"labelsPresence": {"labels": ["a", "b"], "presence": True}}), Argument(("a", "b"), presence=True)),
        (0, given({"labelsPresence": {"labels": ["a"]}}), Argument(("a",))),
        (1, given({"labelPreference": {"label": "a", "presence": True}}, weight=1), Argument(("a",), presence=True)),
        (1, given({"labelPreference": {"label": "a"}}, weight=1), Argument(("a",))),
    ],
)
def test_presence_is_false_where_it_is_absent(section: int, entry: dict[str, Any], argument: Argument) -> None:
    """As in the document's sample RackPreferred, which then prefers nodes without the label."""
    found = read([entry]).predicates if section == 0 else read(priorities=[entry]).priorities
    assert found[0].argument == argument


@pytest.mark.parametrize("name", sorted(path.stem for path in POLICIES.glob("*.json")))
def test_every_example_reads_without_a_warning(name: str) -> None:
    """Those of the document and this project's."""
    assert policy(name).predicates


def test_the_default_policies_are_the_examples() -> None:
    """What is in force without a file can be had as a file, to be changed."""
    assert policy("default") == DEFAULT_POLICY
    assert policy("extender") == EXTENDER_POLICY


def test_only_policies_with_longhorns_rules_need_facts() -> None:
    """So nobody looks for them in vain."""
    assert not DEFAULT_POLICY.reads_longhorn
    assert EXTENDER_POLICY.reads_longhorn
    assert read(priorities=[{"name": "LonghornOrderSafe", "weight": 1}]).reads_longhorn


@pytest.mark.parametrize(
    "versions", [{}, {"version": "v1"}, {"apiVersion": "v1"}, {"kind": "Policy"}, {"kind": "", "apiVersion": ""}]
)
def test_version_and_api_version_are_both_accepted(versions: dict[str, str]) -> None:
    """And neither is needed."""
    assert read(**versions) == read()


def test_a_byte_order_mark_is_skipped() -> None:
    """Some editors write one."""
    text = json.dumps({"priorities": [EQUAL]}).encode()
    assert parse_policy(BOM_UTF8 + text) == parse_policy(text)


def test_keys_may_be_written_in_any_case() -> None:
    """Go reads JSON so."""
    text = b'{"Predicates": [{"NAME": "Zone", "Argument": {"ServiceAffinity": {"Labels": ["zone"]}}}], "PRIORITIES": [{"Name": "EqualPriority", "Weight": 1}]}'
    assert parse_policy(text) == read([ZONE])


@pytest.mark.parametrize("absent", [{}, {"predicates": None, "priorities": None}])
def test_absent_sections_are_empty_and_told(absent: dict[str, None]) -> None:
    """Nothing of the default policy is added."""
    found = parse_policy(json.dumps(absent).encode())
    assert (found.predicates, found.priorities) == ((), ())
    assert [text for text in found.warnings if "replaces the default" in text] == list(found.warnings)
    assert len(found.warnings) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(b"", "is not JSON", id="empty"),
        pytest.param(b'{"predicates": [...]}', "is not JSON", id="a literal ..."),
        pytest.param(b'{"predicates": [{"name": "HostName"},]}', "is not JSON", id="a trailing comma"),
        pytest.param(b"{} {}", "is not JSON", id="two objects"),
        pytest.param(b"[" * 100_000, "is not JSON", id="nested deeply"),
        pytest.param(b"\xff", "is not JSON", id="no text"),
        pytest.param(b"[]", "must be an object", id="a list"),
        pytest.param(b"null", "the file: must be an object, not null", id="null"),
        pytest.param(b'{"kind": "Pod"}', "kind: 'Pod' is not 'Policy'", id="another kind"),
        pytest.param(b'{"kind": 1}', "kind: must be a text", id="no kind"),
        pytest.param(b'{"apiVersion": "v2"}', "apiVersion: 'v2' is not 'v1'", id="another version"),
        pytest.param(b'{"predicates": {}}', "predicates: must be a list", id="section of another type"),
        pytest.param(b'{"predicates": ["HostName"]}', "predicates[0]: must be an object", id="entry of another type"),
        pytest.param(
            b'{"predicates": [{"name": 1}]}', "predicates[0]: name: must be a text", id="name of another type"
        ),
    ],
)
def test_what_is_no_policy_is_refused_when_decoding(text: bytes, problem: str) -> None:
    """With the place."""
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    assert caught.value.stage is PolicyStage.DECODE
    assert problem in str(caught.value)


@pytest.mark.parametrize("weight", ["1", 1.5, 1.0, True, [], 2**63, -(2**63) - 1])
def test_a_weight_that_is_no_whole_number_is_refused_when_decoding(weight: object) -> None:
    """Also 1.0, as Go does."""
    error = refused(priorities=[EQUAL, {"name": "EqualPriority", "weight": weight}])
    assert error.stage is PolicyStage.DECODE
    assert "priorities[1] (EqualPriority): weight: " in str(error)


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ([], "argument: must be an object"),
        ({"serviceAffinity": []}, "serviceAffinity: must be an object"),
        ({"serviceAffinity": {"labels": "zone"}}, "labels: must be a list"),
        ({"serviceAffinity": {"labels": [1]}}, "labels: must be a list of texts"),
        ({"labelsPresence": {"labels": [], "presence": "true"}}, "presence: must be true or false"),
    ],
)
def test_an_argument_of_another_type_is_refused_when_decoding(arguments: Any, where: str) -> None:
    """With the entry's name."""
    error = refused([PORTS, given(arguments)])
    assert error.stage is PolicyStage.DECODE
    assert "predicates[1] (Mine)" in str(error)
    assert where in str(error)


@pytest.mark.parametrize(
    ("weight", "told"),
    [
        ({}, "weight is missing"),
        ({"weight": None}, "weight is missing"),
        ({"weight": 0}, "is 0"),
        ({"weight": -1}, "is -1"),
    ],
)
def test_a_weight_must_be_positive(weight: dict[str, Any], told: str) -> None:
    """Of static and of configurable priorities, in one message."""
    error = refused(priorities=[{"name": "EqualPriority", **weight}, EQUAL, {**RACK, "weight": 0}])
    assert error.stage is PolicyStage.VALIDATE
    assert "priorities[0] (EqualPriority): weight " in str(error)
    assert told in str(error)
    assert "priorities[2] (RackSpread): weight is 0" in str(error)


@pytest.mark.parametrize(
    ("predicates", "priorities", "told"),
    [
        pytest.param(
            ["PodFitsPort"], [], "predicates[0] (PodFitsPort): no predicate has this name (PodFitsPorts", id="unknown"
        ),
        pytest.param(["EqualPriority"], [], "no predicate has this name", id="a priority's name"),
        pytest.param([], ["HostName"], "no priority has this name", id="a predicate's name"),
        pytest.param(["Zone"], [], "needs an argument: serviceAffinity or labelsPresence", id="argument missing"),
        pytest.param([""], [], "predicates[0] (): no predicate", id="no name"),
        pytest.param([given({})], [], "argument must have serviceAffinity or labelsPresence", id="argument empty"),
        pytest.param([given({"serviceAffinity": None})], [], "must have serviceAffinity or", id="argument null"),
        pytest.param([given({"labelPreference": {}})], [], "not labelPreference", id="argument of the other section"),
        pytest.param(
            [given({"serviceAffinity": {}, "labelsPresence": {}})],
            [],
            "has both serviceAffinity and labelsPresence",
            id="both",
        ),
        pytest.param(
            [], [given({"serviceAntiAffinity": {}, "labelPreference": {}})], "has both", id="both of priorities"
        ),
    ],
)
def test_what_no_rule_can_be_made_of_is_refused(predicates: list[Any], priorities: list[Any], told: str) -> None:
    """With the entry, and what would be right."""
    bare = [
        [{"name": entry} if isinstance(entry, str) else entry for entry in section]
        for section in (predicates, priorities)
    ]
    error = refused(bare[0], [{**entry, "weight": 1} for entry in bare[1]])
    assert error.stage is PolicyStage.BUILD
    assert told in str(error)


@pytest.mark.parametrize("name", ["", "x", "-ab", "ab-", "my_zone", "Zone 1", "zöne"])
def test_names_of_ones_own_are_letters_digits_and_hyphens(name: str) -> None:
    """At least two; a static rule's name needs no such test."""
    error = refused([given({"serviceAffinity": {"labels": ["zone"]}}, name)])
    assert error.stage is PolicyStage.BUILD
    assert f"predicates[0] ({name}): a name of your own" in str(error)


@pytest.mark.parametrize("name", ["ab", "1a", "A-b"])
def test_short_and_hyphenated_names_are_allowed(name: str) -> None:
    """Two characters will do."""
    assert read([given({"serviceAffinity": {"labels": ["zone"]}}, name)]).predicates[0].name == name


def test_every_wrong_entry_is_named() -> None:
    """So that nobody has to start the scheduler once per mistake."""
    told = str(refused([{"name": "A"}, PORTS, {"name": "B"}], [EQUAL, {"name": "C", "weight": 1}]))
    assert ["predicates[0] (A)" in told, "predicates[2] (B)" in told, "priorities[1] (C)" in told] == [True] * 3
    assert "predicates[1]" not in told


def test_every_wrong_entry_is_named_when_decoding() -> None:
    """Of both sections, and what is wrong beside them."""
    predicates = [{"name": 1}, PORTS, given({"serviceAffinity": []}), "HostName"]
    error = refused(predicates, [{**EQUAL, "weight": "1"}, EQUAL, {**RACK, "weight": 1.5}], kind="Pod", apiVersion=2)
    assert error.stage is PolicyStage.DECODE
    assert str(error) == (
        "policy: kind: 'Pod' is not 'Policy'; the file: apiVersion: must be a text, not 2; "
        "predicates[0]: name: must be a text, not 1; "
        "predicates[2] (Mine): argument: serviceAffinity: must be an object, not []; "
        "predicates[3]: must be an object, not 'HostName'; "
        "priorities[0] (EqualPriority): weight: must be a whole number, not '1'; "
        "priorities[2] (RackSpread): weight: must be a whole number, not 1.5"
    )


@pytest.mark.parametrize(
    ("section", "argument", "told"),
    [
        (0, {"serviceAffinity": {"label": "zone"}}, "serviceAffinity: needs labels, and 'label' is not known"),
        (
            0,
            {"serviceAffinity": {"labels": None, "label": "zone"}},
            "serviceAffinity: needs labels, and 'label' is not known",
        ),
        (0, {"labelsPresence": {"label": "zone", "presence": True}}, "labelsPresence: needs labels, and 'label' is"),
        (
            1,
            {"serviceAntiAffinity": {"labels": ["rack"]}},
            "serviceAntiAffinity: needs label, and 'labels' is not known",
        ),
        (1, {"labelPreference": {"lable": "a", "presence": True}}, "labelPreference: needs label, and 'lable' is not"),
    ],
)
def test_a_misspelt_argument_is_refused(section: int, argument: dict[str, Any], told: str) -> None:
    """It would be a rule that tells no nodes apart, in silence."""
    entry = given(argument) if section == 0 else given(argument, weight=1)
    error = refused([PORTS, entry]) if section == 0 else refused(priorities=[EQUAL, entry])
    assert error.stage is PolicyStage.DECODE
    assert f"{('predicates', 'priorities')[section]}[1] (Mine): argument: {told}" in str(error)


@pytest.mark.parametrize(("name", "shown"), [("A\nB", r"('A\nB')"), ("x" * 100, f"({'x' * 60}...)")])
def test_an_odd_name_is_told_in_one_line(name: str, shown: str) -> None:
    """Escaped or cut."""
    assert f"predicates[0] {shown}: no predicate" in str(refused([{"name": name}]))


def test_weights_are_looked_at_before_names() -> None:
    """As in Kubernetes: one stage after the other."""
    assert refused([{"name": "A"}], [{"name": "B", "weight": 0}]).stage is PolicyStage.VALIDATE


def test_the_last_of_several_priorities_of_a_name_wins() -> None:
    """It counts once, with its own weight."""
    found = read(priorities=[EQUAL, {"name": "EqualPriority", "weight": 5}])
    assert [(entry.name, entry.weight) for entry in found.priorities] == [("EqualPriority", 5)]
    assert "priorities[1] (EqualPriority): the name was used before" in found.warnings[0]


def test_the_last_of_several_predicates_of_a_name_wins() -> None:
    """With its argument."""
    found = read([ZONE, given({"labelsPresence": {"labels": ["rack"]}}, "Zone")])
    assert [(entry.rule, entry.argument.labels) for entry in found.predicates] == [("labelsPresence", ("rack",))]
    assert len(found.warnings) == 1


def test_a_bare_name_may_stand_for_an_earlier_rule_of_ones_own() -> None:
    """It changes the weight and nothing else."""
    found = read(priorities=[RACK, {"name": "RackSpread", "weight": 7}])
    assert found.priorities == (PolicyPriority("RackSpread", "serviceAntiAffinity", 7, Argument(("rack",))),)


def test_an_argument_under_a_static_name_replaces_the_static_rule() -> None:
    """Also for a bare entry of that name that follows; both are told."""
    found = read([given({"labelsPresence": {"labels": ["a"]}}, "HostName"), {"name": "HostName"}])
    assert [(entry.name, entry.rule) for entry in found.predicates] == [("HostName", "labelsPresence")]
    assert [text.rpartition("): ")[2][:12] for text in found.warnings] == ["the argument", "the name was"]


@pytest.mark.parametrize(
    ("predicate", "told"),
    [
        ({"name": "HostName", "foo": 1}, "predicates[0] (HostName): 'foo' is not known and is ignored"),
        ({"name": "HostName", "weight": "x"}, "'weight' is not known"),
        (given({"serviceAffinity": {"labels": []}}), "serviceAffinity names no label"),
        (given({"labelsPresence": {"presence": True}}), "labelsPresence names no label"),
        (given({"serviceAffinity": {"labels": ["a"]}, "x": {}}), "'x' is not known"),
        (given({"serviceAffinity": {"labels": ["a"], "label": "b"}}), "'label' is not known"),
    ],
)
def test_what_is_odd_is_accepted_with_a_warning(predicate: dict[str, Any], told: str) -> None:
    """As Kubernetes accepts it, in silence."""
    assert [told in text for text in read([predicate]).warnings] == [True]


def test_a_priority_without_label_is_accepted_with_a_warning() -> None:
    """It tells no nodes apart."""
    found = read(priorities=[given({"labelPreference": {}}, weight=1)])
    assert found.priorities[0].argument == Argument(("",))
    assert "names no label" in found.warnings[0]


def test_another_version_is_not_looked_at() -> None:
    """With a warning, because it may be a mistake."""
    assert read(version="v9").warnings == ("version: 'v9' is not looked at",)


def test_a_policy_error_is_one_of_the_cores() -> None:
    """So commands tell it in one line."""
    assert isinstance(refused([{"name": "A"}]), CoreError)
    assert "\n" not in str(refused([{"name": "A"}, {"name": "B"}]))


def test_static_and_configurable_names_never_meet() -> None:
    """The registry is asked for both in one look-up."""
    for rules in (PREDICATES, PRIORITIES):
        assert not set(rules.static) & set(rules.configurable)
