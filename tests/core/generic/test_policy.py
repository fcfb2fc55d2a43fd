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
    """Names of one's own may be short; presence is false where it is absent."""
    present = entry_with({"labelsPresence": {"labels": ["a", "b"], "presence": True}}, "A-b")
    absent = entry_with({"labelsPresence": {"labels": ["a"]}}, "1a")
    preferred = entry_with({"labelPreference": {"label": "a", "presence": True}}, "ab", weight=1)
    parsed = read(
        [PORTS, {"name": "PodFitsHostPorts"}, ZONE, present, absent],
        [EQUAL, {"name": "SelectorSpreadPriority", "weight": 1}, RACK, preferred],
        kind="Policy",
        version="v1",
    )
    assert parsed.predicates == (
        PolicyPredicate("PodFitsPorts", "PodFitsPorts"),
        PolicyPredicate("PodFitsHostPorts", "PodFitsHostPorts"),
        PolicyPredicate("Zone", "serviceAffinity", Argument(("zone",))),
        PolicyPredicate("A-b", "labelsPresence", Argument(("a", "b"), presence=True)),
        PolicyPredicate("1a", "labelsPresence", Argument(("a",))),
    )
    assert parsed.priorities == (
        PolicyPriority("EqualPriority", "EqualPriority", 1),
        PolicyPriority("SelectorSpreadPriority", "SelectorSpreadPriority", 1),
        PolicyPriority("RackSpread", "serviceAntiAffinity", 2, Argument(("rack",))),
        PolicyPriority("ab", "labelPreference", 1, Argument(("a",), presence=True)),
    )


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


def weighted(weight: object, name: str = "EqualPriority") -> dict[str, object]:
    return {"name": name, "weight": weight}


def mine(rule: str, value: object, name: str = "Mine", **fields: object) -> dict[str, Any]:
    return entry_with({rule: value}, name, **fields)


DECODE = PolicyStage.DECODE
VALIDATE = PolicyStage.VALIDATE
BUILD = PolicyStage.BUILD
LABELS = {"labels": ["zone"]}
NO_WHOLE_NUMBERS: tuple[object, ...] = ("1", 1.5, 1.0, True, [], 2**63, -(2**63) - 1)
TWO: dict[str, Any] = {"serviceAffinity": {}, "labelsPresence": {}}


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
    ],
)
def test_a_file_that_is_no_policy_is_refused_when_decoding(text: bytes, problem: str) -> None:
    error = parse_error(text)
    assert (error.stage, problem in str(error)) == (DECODE, True)


@pytest.mark.parametrize(
    ("entry", "stage", "problem"),
    [
        ("HostName", DECODE, "predicates[1]: must be an object"),
        ({"name": 1}, DECODE, "predicates[1]: name: must be a text"),
        (entry_with([]), DECODE, "argument: must be an object"),  # type: ignore[arg-type]
        (mine("serviceAffinity", []), DECODE, "serviceAffinity: must be an object"),
        (mine("serviceAffinity", {"labels": "zone"}), DECODE, "labels: must be a list"),
        (mine("serviceAffinity", {"labels": [1]}), DECODE, "labels: must be a list of texts"),
        (mine("labelsPresence", {"labels": [], "presence": "true"}), DECODE, "presence: must be true or false"),
        # A misspelt argument would silently be a rule that treats all nodes alike.
        (mine("serviceAffinity", {"label": "zone"}), DECODE, "serviceAffinity: needs labels, and 'label' is not known"),
        (mine("serviceAffinity", {"labels": None, "label": "z"}), DECODE, "needs labels, and 'label' is not known"),
        (mine("labelsPresence", {"label": "zone", "presence": True}), DECODE, "needs labels, and 'label' is"),
        ({"name": "PodFitsPort"}, BUILD, "(PodFitsPort): no predicate has this name (PodFitsHostPorts"),
        ({"name": "EqualPriority"}, BUILD, "no predicate has this name"),
        ({"name": "Zone"}, BUILD, "needs an argument: serviceAffinity or labelsPresence"),
        ({"name": ""}, BUILD, "predicates[1] (): no predicate"),
        ({"name": "A\nB"}, BUILD, r"predicates[1] ('A\nB'): no predicate"),
        ({"name": "x" * 100}, BUILD, f"predicates[1] ({'x' * 60}...): no predicate"),
        (entry_with({}), BUILD, "argument must have serviceAffinity or labelsPresence"),
        (mine("serviceAffinity", None), BUILD, "must have serviceAffinity or"),
        (mine("labelPreference", {}), BUILD, "not labelPreference"),
        (entry_with(TWO), BUILD, "has both serviceAffinity and labelsPresence"),
        *(
            (mine("serviceAffinity", LABELS, name), BUILD, f"predicates[1] ({name}): a name of your own")
            for name in ("", "x", "-ab", "ab-", "my_zone", "Zone 1", "zöne")
        ),
    ],
    ids=str,
)
def test_a_predicate_that_cannot_be_used_is_named_with_what_would_be_right(
    entry: Any, stage: PolicyStage, problem: str
) -> None:
    """In one line, as a command prints it."""
    error = read_error([PORTS, entry])
    assert isinstance(error, CoreError)
    assert error.stage is stage
    assert "predicates[1]" in str(error)
    assert problem in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("entry", "stage", "problem"),
    [
        # 1.0 is refused too, as by Go.
        *((weighted(weight), DECODE, "(EqualPriority): weight: ") for weight in NO_WHOLE_NUMBERS),
        ({"name": "EqualPriority"}, VALIDATE, "(EqualPriority): weight is missing"),
        (weighted(None), VALIDATE, "weight is missing"),
        (weighted(0), VALIDATE, "weight is 0"),
        (weighted(-1), VALIDATE, "weight is -1"),
        (weighted(0, "Nonsense"), VALIDATE, "weight is 0"),  # before names, as in Kubernetes
        (weighted(1, "HostName"), BUILD, "no priority has this name"),
        (weighted(1, "SelectorSpread"), BUILD, "no priority has this name (LeastRequestedPriority"),
        (entry_with({"serviceAntiAffinity": {}, "labelPreference": {}}, weight=1), BUILD, "has both"),
        (mine("serviceAntiAffinity", {"labels": ["rack"]}, weight=1), DECODE, "needs label, and 'labels' is not known"),
        (mine("labelPreference", {"lable": "a", "presence": True}, weight=1), DECODE, "and 'lable' is not known"),
    ],
    ids=str,
)
def test_a_priority_that_cannot_be_used_is_named_with_what_would_be_right(
    entry: Any, stage: PolicyStage, problem: str
) -> None:
    error = read_error(priorities=[EQUAL, entry])
    assert error.stage is stage
    assert "priorities[1]" in str(error)
    assert problem in str(error)


def test_keys_may_be_written_in_any_case() -> None:
    text = b'{"Predicates": [{"NAME": "Zone", "Argument": {"ServiceAffinity": {"Labels": ["zone"]}}}], "PRIORITIES": [{"Name": "EqualPriority", "Weight": 1}]}'
    assert parse_policy(text) == read([ZONE])


@pytest.mark.parametrize("absent", [None, {}, {"predicates": None, "priorities": None}])
def test_absent_sections_are_empty_with_a_warning(absent: dict[str, None] | None) -> None:
    parsed = parse_policy(json.dumps(absent).encode())
    assert (parsed.predicates, parsed.priorities) == ((), ())
    assert [text for text in parsed.warnings if "replaces the default" in text] == list(parsed.warnings)
    assert len(parsed.warnings) == 2


def test_every_wrong_entry_is_named() -> None:
    """So that all mistakes can be corrected at once."""
    unknown = str(read_error([{"name": "A"}, PORTS, {"name": "B"}], [EQUAL, weighted(1, "C")]))
    assert re.findall(r"p\w+\[\d\] \(\w\)", unknown) == ["predicates[0] (A)", "predicates[2] (B)", "priorities[1] (C)"]
    weights = str(read_error(priorities=[weighted(-1), EQUAL, {**RACK, "weight": 0}]))
    assert re.findall(r"p\w+\[\d\]", weights) == ["priorities[0]", "priorities[2]"]


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


def test_the_last_of_several_priorities_of_a_name_counts() -> None:
    parsed = read(priorities=[EQUAL, {"name": "EqualPriority", "weight": 5}])
    assert [(entry.name, entry.weight) for entry in parsed.priorities] == [("EqualPriority", 5)]
    assert "priorities[1] (EqualPriority): the name was used before" in parsed.warnings[0]


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
    ids=["predicate", "priority"],
)
def test_a_missing_presence_causes_a_warning(section: str, entry: dict[str, Any], effect: str) -> None:
    rule, argument = next(iter(entry["argument"].items()))
    (warning,) = read(**{section: [entry]}).warnings
    assert warning.startswith(
        f"{section}[0] (Mine): argument: {rule}: presence is missing and counts as false, so {effect}; write true or false (line 1"
    )
    assert read(**{section: [entry | {"argument": {rule: argument | {"presence": False}}}]}).warnings == ()


def test_a_priority_without_label_is_accepted_with_a_warning() -> None:
    parsed = read(priorities=[entry_with({"labelPreference": {}}, weight=1)])
    assert parsed.priorities[0].argument == Argument(("",))
    assert "names no label" in parsed.warnings[0]


def test_an_unknown_version_is_ignored_with_a_warning() -> None:
    """It may be a mistake."""
    assert read(version="v9").warnings == ("version: 'v9' is not looked at",)


def test_static_and_configurable_names_differ() -> None:
    for rules in (PREDICATES, PRIORITIES):
        assert not set(rules.static) & set(rules.configurable)
