"""The policy file: what it may contain, and the errors and warnings about it."""

import json
import re
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


def policy_text(predicates: object, priorities: object, **fields: object) -> bytes:
    return json.dumps({"predicates": predicates, "priorities": priorities, **fields}).encode()


def read(predicates: object = (PORTS,), priorities: object = (EQUAL,), **fields: object) -> Policy:
    return parse_policy(policy_text(predicates, priorities, **fields))


def parse_error(text: bytes) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    return caught.value


def read_error(predicates: object = (PORTS,), priorities: object = (EQUAL,), **fields: object) -> PolicyError:
    return parse_error(policy_text(predicates, priorities, **fields))


def entry_with(arguments: dict[str, Any], name: str = "Mine", **fields: object) -> dict[str, Any]:
    return {"name": name, "argument": arguments, **fields}


def test_a_policy_is_read_entry_by_entry() -> None:
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
        (
            0,
            entry_with({"labelsPresence": {"labels": ["a", "b"], "presence": True}}),
            Argument(("a", "b"), presence=True),
        ),
        (0, entry_with({"labelsPresence": {"labels": ["a"]}}), Argument(("a",))),
        (
            1,
            entry_with({"labelPreference": {"label": "a", "presence": True}}, weight=1),
            Argument(("a",), presence=True),
        ),
        (1, entry_with({"labelPreference": {"label": "a"}}, weight=1), Argument(("a",))),
    ],
)
def test_presence_is_false_where_it_is_absent(section: int, entry: dict[str, Any], argument: Argument) -> None:
    entries = read([entry]).predicates if section == 0 else read(priorities=[entry]).priorities
    assert entries[0].argument == argument


@pytest.mark.parametrize("name", sorted(path.stem for path in POLICIES.glob("*.json")))
def test_every_example_reads_without_a_warning(name: str) -> None:
    assert policy(name).predicates


def test_the_default_policies_are_the_examples() -> None:
    """So the policy in force without a file can be copied and changed."""
    assert policy("default") == DEFAULT_POLICY
    assert policy("extender") == EXTENDER_POLICY


def test_only_policies_with_longhorns_rules_need_facts() -> None:
    """So they are not collected in vain."""
    assert not DEFAULT_POLICY.reads_longhorn
    assert EXTENDER_POLICY.reads_longhorn
    assert read(priorities=[{"name": "LonghornOrderSafe", "weight": 1}]).reads_longhorn


@pytest.mark.parametrize(
    "versions", [{}, {"version": "v1"}, {"apiVersion": "v1"}, {"kind": "Policy"}, {"kind": "", "apiVersion": ""}]
)
def test_version_and_api_version_are_both_accepted(versions: dict[str, str]) -> None:
    assert read(**versions) == read()


def test_a_byte_order_mark_is_skipped() -> None:
    text = json.dumps({"priorities": [EQUAL]}).encode()
    assert parse_policy(BOM_UTF8 + text) == parse_policy(text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        pytest.param(
            b'{"predicates": [],\n "predicates": [{"name": "HostName"}]}',
            "the file: 'predicates' and 'predicates' are one key, written twice (line 1, column 2; line 2, column 2)",
            id="section",
        ),
        pytest.param(
            b'{"Predicates": [],\n"predicates": []}',
            "the file: 'Predicates' and 'predicates' are one key, written twice (line 1, column 2; line 2, column 1)",
            id="another case",
        ),
        pytest.param(
            b'{"priorities": [{"name": "EqualPriority", "weight": 1, "Weight": 2}]}',
            "priorities[0]: 'weight' and 'Weight' are one key, written twice (line 1, column 43; line 1, column 56)",
            id="field of an entry",
        ),
        pytest.param(
            b'{"predicates": [{"name": "Zone", "argument": {"serviceAffinity": {"labels": ["a"], "labels": ["b"]}}}]}',
            "predicates[0].argument.serviceAffinity: 'labels' and 'labels' are one key, written twice",
            id="argument",
        ),
    ],
)
def test_a_key_that_is_written_twice_is_refused(text: bytes, fault: str) -> None:
    """Of the two values one would be lost without a word."""
    error = parse_error(text)
    assert error.stage is PolicyStage.DECODE
    assert fault in str(error)


def test_two_entries_may_have_the_same_keys() -> None:
    assert len(read([PORTS, ZONE]).predicates) == 2


@pytest.mark.parametrize(
    ("text", "place"),
    [
        pytest.param('{\n "predicates": [\n  {"name": "A"}]}', "(line 3, column 3)", id="unknown name: the entry"),
        pytest.param('{"priorities": [\n{"name": "EqualPriority"}]}', "(line 2, column 1)", id="no weight: the entry"),
        pytest.param(
            '{"priorities": [{"name": "ä", "weight": "1"}]}', "(line 1, column 41)", id="wrong type: the value"
        ),
        pytest.param('{"PREDICATES": [{"Name":\n1}]}', "(line 2, column 1)", id="keys in another case"),
        pytest.param(
            '{"predicates": [{"name": "Mine", "argument": {"serviceAffinity": {"lable": 1}}}]}',
            "(line 1, column 76)",
            id="misspelt key: its value",
        ),
        pytest.param('{"kind": "Policy",\n "apiVersion": "v2"}', "(line 2, column 16)", id="field of the file"),
        pytest.param('{"predicates": [\n{"name": "HostName"},]}', "(line 2, column 22)", id="no JSON"),
    ],
)
def test_an_error_names_line_and_column(text: str, place: str) -> None:
    assert str(parse_error(text.encode())).endswith(place)


@pytest.mark.parametrize(
    ("section", "name", "advice"),
    [
        ("predicates", "GeneralPredicates", "use PodFitsResources, PodFitsHostPorts, MatchNodeSelector and HostName"),
        ("predicates", "TaintToleration", "use PodToleratesNodeTaints"),
        ("predicates", "NoVolumeZoneConflict", "no rule reads cloud volumes"),
        ("predicates", "CheckNodeCondition", "nodes that are not ready are always left out"),
        ("priorities", "SelectorSpread", "use SelectorSpreadPriority"),
        ("priorities", "ImageLocalityPriority", "let kube-scheduler schedule"),
    ],
)
def test_a_name_of_a_later_kubernetes_is_refused_with_what_to_use(section: str, name: str, advice: str) -> None:
    error = read_error(**{section: [{"name": name, "weight": 1}]})
    assert error.stage is PolicyStage.BUILD
    assert f"{section}[0] ({name})" in str(error)
    assert advice in str(error)


def test_no_name_is_both_a_rule_and_refused_with_advice() -> None:
    for rules in (PREDICATES, PRIORITIES):
        assert not rules.advice.keys() & rules.static.keys()


@pytest.mark.parametrize(
    ("section", "name"),
    [("predicates", "PodFitsHostPorts"), ("predicates", "PodFitsPorts"), ("priorities", "SelectorSpreadPriority")],
)
def test_the_names_of_1_1_are_accepted(section: str, name: str) -> None:
    parsed = read(**{section: [{"name": name, "weight": 1}]})
    rules = [entry.rule for entry in parsed.predicates] + [entry.rule for entry in parsed.priorities]
    assert rules.count(name) == 1


def test_keys_may_be_written_in_any_case() -> None:
    text = b'{"Predicates": [{"NAME": "Zone", "Argument": {"ServiceAffinity": {"Labels": ["zone"]}}}], "PRIORITIES": [{"Name": "EqualPriority", "Weight": 1}]}'
    assert parse_policy(text) == read([ZONE])


@pytest.mark.parametrize("absent", [None, {}, {"predicates": None, "priorities": None}])
def test_absent_sections_are_empty_with_a_warning(absent: dict[str, None] | None) -> None:
    parsed = parse_policy(json.dumps(absent).encode())
    assert (parsed.predicates, parsed.priorities) == ((), ())
    assert [text for text in parsed.warnings if "replaces the default" in text] == list(parsed.warnings)
    assert len(parsed.warnings) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param(b"", "is not JSON", id="empty"),
        pytest.param(b'{"predicates": [...]}', "is not JSON", id="a literal ..."),
        pytest.param(b'{"predicates": [{"name": "HostName"},]}', "is not JSON", id="a trailing comma"),
        pytest.param(b"{} {}", "is not JSON", id="two objects"),
        pytest.param(b"[" * 100_000, "is not JSON", id="nested deeply"),
        pytest.param(b"\xff", "is not JSON", id="no text"),
        pytest.param(b"apiVersion: v1\nkind: ConfigMap\n", "is a ConfigMap; a policy file is", id="a ConfigMap"),
        pytest.param(b'{"kind": "ConfigMap", "apiVersion": "v1"}', "is a ConfigMap; a policy file is", id="in JSON"),
        pytest.param(b"[]", "must be an object", id="a list"),
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
def test_a_file_that_is_no_policy_is_refused_when_decoding(text: bytes, problem: str) -> None:
    error = parse_error(text)
    assert error.stage is PolicyStage.DECODE
    assert problem in str(error)


@pytest.mark.parametrize("weight", ["1", 1.5, 1.0, True, [], 2**63, -(2**63) - 1])
def test_a_weight_that_is_no_whole_number_is_refused_when_decoding(weight: object) -> None:
    """1.0 is refused too, as by Go."""
    error = read_error(priorities=[EQUAL, {"name": "EqualPriority", "weight": weight}])
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
def test_an_argument_of_a_wrong_type_is_refused_when_decoding(arguments: Any, where: str) -> None:
    error = read_error([PORTS, entry_with(arguments)])
    assert error.stage is PolicyStage.DECODE
    assert "predicates[1] (Mine)" in str(error)
    assert where in str(error)


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        ({}, "weight is missing"),
        ({"weight": None}, "weight is missing"),
        ({"weight": 0}, "is 0"),
        ({"weight": -1}, "is -1"),
    ],
)
def test_a_weight_must_be_positive(weight: dict[str, Any], problem: str) -> None:
    error = read_error(priorities=[{"name": "EqualPriority", **weight}, EQUAL, {**RACK, "weight": 0}])
    assert error.stage is PolicyStage.VALIDATE
    assert "priorities[0] (EqualPriority): weight " in str(error)
    assert problem in str(error)
    assert "priorities[2] (RackSpread): weight is 0" in str(error)


@pytest.mark.parametrize(
    ("predicates", "priorities", "problem"),
    [
        pytest.param(
            ["PodFitsPort"],
            [],
            "predicates[0] (PodFitsPort): no predicate has this name (PodFitsHostPorts",
            id="unknown",
        ),
        pytest.param(["EqualPriority"], [], "no predicate has this name", id="a priority's name"),
        pytest.param([], ["HostName"], "no priority has this name", id="a predicate's name"),
        pytest.param(["Zone"], [], "needs an argument: serviceAffinity or labelsPresence", id="argument missing"),
        pytest.param([""], [], "predicates[0] (): no predicate", id="no name"),
        pytest.param([entry_with({})], [], "argument must have serviceAffinity or labelsPresence", id="argument empty"),
        pytest.param([entry_with({"serviceAffinity": None})], [], "must have serviceAffinity or", id="argument null"),
        pytest.param(
            [entry_with({"labelPreference": {}})], [], "not labelPreference", id="argument of the other section"
        ),
        pytest.param(
            [entry_with({"serviceAffinity": {}, "labelsPresence": {}})],
            [],
            "has both serviceAffinity and labelsPresence",
            id="both",
        ),
        pytest.param(
            [], [entry_with({"serviceAntiAffinity": {}, "labelPreference": {}})], "has both", id="both of priorities"
        ),
    ],
)
def test_an_entry_that_is_no_rule_is_refused(predicates: list[Any], priorities: list[Any], problem: str) -> None:
    """The error names the entry and what would be right."""
    bare = [
        [{"name": entry} if isinstance(entry, str) else entry for entry in section]
        for section in (predicates, priorities)
    ]
    error = read_error(bare[0], [{**entry, "weight": 1} for entry in bare[1]])
    assert error.stage is PolicyStage.BUILD
    assert problem in str(error)


@pytest.mark.parametrize("name", ["", "x", "-ab", "ab-", "my_zone", "Zone 1", "zöne"])
def test_custom_names_have_only_letters_digits_and_hyphens(name: str) -> None:
    error = read_error([entry_with({"serviceAffinity": {"labels": ["zone"]}}, name)])
    assert error.stage is PolicyStage.BUILD
    assert f"predicates[0] ({name}): a name of your own" in str(error)


@pytest.mark.parametrize("name", ["ab", "1a", "A-b"])
def test_short_and_hyphenated_names_are_allowed(name: str) -> None:
    assert read([entry_with({"serviceAffinity": {"labels": ["zone"]}}, name)]).predicates[0].name == name


def test_every_wrong_entry_is_named() -> None:
    """So that all mistakes can be corrected at once."""
    message = str(read_error([{"name": "A"}, PORTS, {"name": "B"}], [EQUAL, {"name": "C", "weight": 1}]))
    assert ["predicates[0] (A)" in message, "predicates[2] (B)" in message, "priorities[1] (C)" in message] == [
        True
    ] * 3
    assert "predicates[1]" not in message


def test_every_wrong_entry_is_named_when_decoding() -> None:
    predicates = [{"name": 1}, PORTS, entry_with({"serviceAffinity": []}), "HostName"]
    error = read_error(predicates, [{**EQUAL, "weight": "1"}, EQUAL, {**RACK, "weight": 1.5}], kind="Pod", apiVersion=2)
    assert error.stage is PolicyStage.DECODE
    assert re.sub(r" \(line 1, column \d+\)", "", str(error)) == (
        "policy: kind: 'Pod' is not 'Policy'; the file: apiVersion: must be a text, not 2; "
        "predicates[0]: name: must be a text, not 1; "
        "predicates[2] (Mine): argument: serviceAffinity: must be an object, not []; "
        "predicates[3]: must be an object, not 'HostName'; "
        "priorities[0] (EqualPriority): weight: must be a whole number, not '1'; "
        "priorities[2] (RackSpread): weight: must be a whole number, not 1.5"
    )


@pytest.mark.parametrize(
    ("section", "argument", "problem"),
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
def test_a_misspelt_argument_is_refused(section: int, argument: dict[str, Any], problem: str) -> None:
    """It would silently be a rule that treats all nodes alike."""
    entry = entry_with(argument) if section == 0 else entry_with(argument, weight=1)
    error = read_error([PORTS, entry]) if section == 0 else read_error(priorities=[EQUAL, entry])
    assert error.stage is PolicyStage.DECODE
    assert f"{('predicates', 'priorities')[section]}[1] (Mine): argument: {problem}" in str(error)


@pytest.mark.parametrize(("name", "printed"), [("A\nB", r"('A\nB')"), ("x" * 100, f"({'x' * 60}...)")])
def test_an_odd_name_is_printed_in_one_line(name: str, printed: str) -> None:
    assert f"predicates[0] {printed}: no predicate" in str(read_error([{"name": name}]))


def test_weights_are_checked_before_names() -> None:
    """Validation comes before building, as in Kubernetes."""
    assert read_error([{"name": "A"}], [{"name": "B", "weight": 0}]).stage is PolicyStage.VALIDATE


def test_the_last_of_several_priorities_of_a_name_counts() -> None:
    parsed = read(priorities=[EQUAL, {"name": "EqualPriority", "weight": 5}])
    assert [(entry.name, entry.weight) for entry in parsed.priorities] == [("EqualPriority", 5)]
    assert "priorities[1] (EqualPriority): the name was used before" in parsed.warnings[0]


def test_the_last_of_several_predicates_of_a_name_counts() -> None:
    parsed = read([ZONE, entry_with({"labelsPresence": {"labels": ["rack"], "presence": True}}, "Zone")])
    assert [(entry.rule, entry.argument.labels) for entry in parsed.predicates] == [("labelsPresence", ("rack",))]
    assert len(parsed.warnings) == 1


def test_a_bare_name_may_repeat_an_earlier_custom_rule() -> None:
    parsed = read(priorities=[RACK, {"name": "RackSpread", "weight": 7}])
    assert parsed.priorities == (PolicyPriority("RackSpread", "serviceAntiAffinity", 7, Argument(("rack",))),)


def test_an_argument_under_a_static_name_replaces_the_static_rule() -> None:
    argument = {"labelsPresence": {"labels": ["a"], "presence": True}}
    parsed = read([entry_with(argument, "HostName"), {"name": "HostName"}])
    assert [(entry.name, entry.rule) for entry in parsed.predicates] == [("HostName", "labelsPresence")]
    assert [text.rpartition("): ")[2][:12] for text in parsed.warnings] == ["the argument", "the name was"]


@pytest.mark.parametrize(
    ("predicate", "problem"),
    [
        ({"name": "HostName", "foo": 1}, "predicates[0] (HostName): 'foo' is not known and is ignored"),
        ({"name": "HostName", "weight": "x"}, "'weight' is not known"),
        (entry_with({"serviceAffinity": {"labels": []}}), "serviceAffinity names no label"),
        (entry_with({"labelsPresence": {"presence": True}}), "labelsPresence names no label"),
        (entry_with({"serviceAffinity": {"labels": ["a"]}, "x": {}}), "'x' is not known"),
        (entry_with({"serviceAffinity": {"labels": ["a"], "label": "b"}}), "'label' is not known"),
    ],
)
def test_an_odd_predicate_is_accepted_with_a_warning(predicate: dict[str, Any], problem: str) -> None:
    assert [problem in text for text in read([predicate]).warnings] == [True]


def test_a_priority_without_label_is_accepted_with_a_warning() -> None:
    parsed = read(priorities=[entry_with({"labelPreference": {}}, weight=1)])
    assert parsed.priorities[0].argument == Argument(("",))
    assert "names no label" in parsed.warnings[0]


@pytest.mark.parametrize(
    ("section", "entry", "effect"),
    [
        (
            "predicates",
            entry_with({"labelsPresence": {"labels": ["region"]}}),
            "nodes with one of the labels are refused",
        ),
        (
            "priorities",
            entry_with({"labelPreference": {"label": "rack", "presence": None}}, weight=1),
            "nodes without the label are preferred",
        ),
    ],
)
def test_a_missing_presence_causes_a_warning(section: str, entry: dict[str, Any], effect: str) -> None:
    rule, argument = next(iter(entry["argument"].items()))
    (warning,) = read(**{section: [entry]}).warnings
    assert warning.startswith(
        f"{section}[0] (Mine): argument: {rule}: presence is missing and counts as false, so {effect}; write true or false (line 1"
    )
    assert read(**{section: [entry | {"argument": {rule: argument | {"presence": False}}}]}).warnings == ()


def test_an_unknown_version_is_ignored_with_a_warning() -> None:
    """It may be a mistake."""
    assert read(version="v9").warnings == ("version: 'v9' is not looked at",)


def test_a_policy_error_is_a_core_error() -> None:
    """So commands print it in one line."""
    assert isinstance(read_error([{"name": "A"}]), CoreError)
    assert "\n" not in str(read_error([{"name": "A"}, {"name": "B"}]))


def test_static_and_configurable_names_differ() -> None:
    for rules in (PREDICATES, PRIORITIES):
        assert not set(rules.static) & set(rules.configurable)
