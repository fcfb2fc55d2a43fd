"""Rules of plugins: names, arguments, scores, and failures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from scheduler_core.generic.cluster_state import NodeInfo
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.generic.plugin_rules import NO_PLUGINS, PluginError, PredicatePlugin, PriorityPlugin
from scheduler_core.generic.policy import Policy, PolicyError, parse_policy
from scheduler_core.generic.predicates import Check
from scheduler_core.generic.scheduler import policy_refusals
from tests.worlds import awkward_plugin
from tests.worlds.policy_rules import decide, node, pod, state

CLUSTER = state([node("a", pods=1), node("b", pods=5)])


@dataclass(frozen=True)
class Least:
    """An argument."""

    pods: int
    strict: bool = False
    zones: dict[str, list[str]] = field(default_factory=dict)


def has_room(_: CycleState, argument: Least) -> Check:
    """Whether the node takes so many pods."""
    return lambda node_info: "" if node_info.node.pods >= argument.pods else "too few pods"


LEAST = PredicatePlugin("leastPods", has_room, Least)


def policy_with(*predicates: PredicatePlugin, priorities: Sequence[PriorityPlugin] = (), text: str = "") -> Policy:
    plugins = NO_PLUGINS.add("plugin mine.py", predicates, priorities)
    names = ",".join(f'{{"name": "{rule.name}"}}' for rule in predicates)
    weights = ",".join(f'{{"name": "{rule.name}", "weight": 1}}' for rule in priorities)
    return parse_policy((text or f'{{"predicates": [{names}], "priorities": [{weights}]}}').encode(), plugins)


def with_argument(argument: str) -> Policy:
    return policy_with(LEAST, text=f'{{"predicates": [{{"name": "Roomy", "argument": {{"leastPods": {argument}}}}}]}}')


def test_an_argument_has_the_type_that_the_plugin_defines() -> None:
    """Fields with defaults may be absent."""
    assert with_argument('{"pods": 3}').predicates[0].argument == Least(3)


@pytest.mark.parametrize(
    ("argument", "wrong", "problem"),
    [
        ('{"pods": "3"}', '"3"', "pods: Expected `int`, got `str`"),
        ("{}", "{}", "Object missing required field `pods`"),
        ('{"pods": 3, "stict": true}', "true", "'stict' is not known; there are pods, strict, zones"),
        ("[3]", "[3]", "Expected `object`, got `array`"),
        ('{"pods": 3, "zones": {"a": ["x", 1]}}', '{"a"', "zones[...][1]: Expected `str`, got `int`"),
    ],
)
def test_a_wrong_argument_is_named(argument: str, wrong: str, problem: str) -> None:
    with pytest.raises(PolicyError) as refused:
        with_argument(argument)
    column = len('{"predicates": [{"name": "Roomy", "argument": {"leastPods": ') + argument.index(wrong) + 1
    location = "policy: predicates[0] (Roomy): argument: leastPods"
    assert str(refused.value) == f"{location}: {problem} (line 1, column {column})"


def awkward_policy(rule: str) -> Policy:
    """A policy whose predicate and priority are of this name in the awkward plugin."""
    argument = {"argument": {rule: {"names": ["a"]}}} if rule[0].islower() else {}
    name = "Own" if argument else rule
    entries = {"predicates": [{"name": name, **argument}], "priorities": [{"name": name, "weight": 1, **argument}]}
    plugins = NO_PLUGINS.add("plugin awkward", awkward_plugin.PREDICATES, awkward_plugin.PRIORITIES)
    return parse_policy(json.dumps(entries).encode(), plugins)


@pytest.mark.parametrize("rule", awkward_plugin.USABLE)
def test_an_argument_need_not_be_hashable_or_comparable(rule: str) -> None:
    policy = awkward_policy(rule)
    decision = decide(pod(), CLUSTER, policy)
    assert (decision.node, decision.ranking.scores) == ("b", {"Own": {"b": 0}})
    assert [failure.text for failure in decision.failures["a"]] == [r"a name\nof the list"]
    refusals = policy_refusals(pod(), ["a", "b"], CLUSTER, policy)
    assert {name: refusal.text for name, refusal in refusals.items()} == {"a": r"Own: a name\nof the list"}


@pytest.mark.parametrize(
    ("rule", "problem"), [("raisingInit", r"KeyError: 'first line\nsecond line'"), ("exitingInit", "SystemExit: 3")]
)
def test_an_argument_that_its_type_does_not_take_is_an_error_of_the_policy(rule: str, problem: str) -> None:
    """Whatever the type's code raises, in one line."""
    with pytest.raises(PolicyError) as refused:
        awkward_policy(rule)
    assert str(refused.value).startswith(
        f"policy: predicates[0] (Own): argument: {rule}: cannot be read: {problem} (line 1, column "
    )
    assert f"; priorities[0] (Own): argument: {rule}: cannot be read: {problem} (line 1" in str(refused.value)


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("Raises", r"ValueError: first line\nsecond line"),
        ("Exits", "SystemExit: 3"),
        ("Unreadable", "UnreadableError: it has no readable text"),
    ],
)
def test_the_error_of_a_rule_is_one_line(rule: str, problem: str) -> None:
    """Whatever the rule raises, no node fits."""
    decision = decide(pod(), CLUSTER, awkward_policy(rule))
    assert (decision.node, decision.error) == ("", f"plugin rule {rule} failed: {problem}")


def test_a_predicate_refuses_nodes() -> None:
    decision = decide(pod(), CLUSTER, with_argument('{"pods": 3}'))
    assert decision.node == "b"
    (failure,) = decision.failures["a"]
    assert (failure.predicate, failure.text) == ("Roomy", "too few pods")


@pytest.mark.parametrize("eviction_helps", [True, False])
def test_the_extender_applies_a_predicate(eviction_helps: bool) -> None:
    rule = PredicatePlugin("leastPods", has_room, Least, eviction_helps)
    text = '{"predicates": [{"name": "Roomy", "argument": {"leastPods": {"pods": 3}}}]}'
    refusals = policy_refusals(pod(), ["a", "b"], CLUSTER, policy_with(rule, text=text))
    assert {name: (refusal.text, refusal.unresolvable) for name, refusal in refusals.items()} == {
        "a": ("Roomy: too few pods", not eviction_helps)
    }


def priority(scores: Callable[[Sequence[NodeInfo]], Any]) -> Policy:
    return policy_with(priorities=[PriorityPlugin("Mine", lambda _, __, node_infos: scores(node_infos))])


def test_scores_are_cut_off_to_whole_numbers_from_0_to_10() -> None:
    cluster = state([node(name) for name in "abcd"])
    decision = decide(pod(), cluster, priority(lambda _: [-3, 99, 4.9, 10]))
    assert decision.ranking.scores == {"Mine": {"a": 0, "b": 10, "c": 4, "d": 10}}


@pytest.mark.parametrize(
    ("scores", "problem"),
    [
        (lambda _: [1], "ValueError: 1 scores for 2 nodes"),
        (lambda _: ["x", "y"], "ValueError: invalid literal for int"),
        (lambda _: None, "TypeError: 'NoneType' object is not iterable"),
        (lambda _: [float("nan"), 0], "ValueError: cannot convert float NaN to integer"),
    ],
)
def test_a_priority_that_fails_is_named(scores: Callable[[Sequence[NodeInfo]], Any], problem: str) -> None:
    """The pod gets no node, because nothing was decided."""
    decision = decide(pod(), CLUSTER, priority(scores))
    assert decision.node == ""
    assert decision.error.startswith(f"plugin rule Mine failed: {problem}")


@pytest.mark.parametrize(
    ("check", "problem"),
    [(lambda _: 1 // 0, "ZeroDivisionError"), (lambda _: None, "TypeError: a check returned None, expected a text")],
)
def test_a_predicate_that_fails_is_named(check: Check, problem: str) -> None:
    """The pod gets no node, because nothing was decided."""
    decision = decide(pod(), CLUSTER, policy_with(PredicatePlugin("Mine", lambda _, __: check)))
    assert decision.node == ""
    assert decision.error.startswith(f"plugin rule Mine failed: {problem}")


class Computed(PredicatePlugin, frozen=True):
    """A predicate that computes its fields."""


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (PredicatePlugin("HostName", has_room), "(HostName): a rule of this package has this name"),
        (
            PredicatePlugin("serviceAffinity", has_room, Least),
            "(serviceAffinity): a rule of this package has this name",
        ),
        (PredicatePlugin("LonghornMine", has_room), "(LonghornMine): names with Longhorn"),
        (
            PredicatePlugin("leastPods", has_room),
            "(leastPods): the name of a rule without an argument begins with a capital",
        ),
        (
            PredicatePlugin("LeastPods", has_room, Least),
            "(LeastPods): the name of a rule with an argument begins with a lower",
        ),
        (PredicatePlugin("no name", has_room), "(no name): a name has letters, digits and _"),
        (PriorityPlugin("Mine", lambda _, __, ___: []), ": PriorityPlugin(name='Mine'"),
        (Computed("Mine", has_room), ": Computed(name='Mine'"),
        (3, ": 3 is not a predicate plugin"),
        (PredicatePlugin(5, has_room), ": name: 5 is not a text"),  # type: ignore[arg-type]
        (PredicatePlugin("Mine", None), "(Mine): function: None cannot be called"),  # type: ignore[arg-type]
        (PredicatePlugin("Mine", has_room, eviction_helps=1), "(Mine): eviction_helps: 1 is not True or False"),  # type: ignore[arg-type]
        (PredicatePlugin("mine", has_room, int), "(mine): argument: must be a dataclass or a msgspec.Struct"),
        (PredicatePlugin("mine", has_room, Least(1)), "(mine): argument: TypeError: Type 'Least("),  # type: ignore[arg-type]
    ],
)
def test_a_rule_that_cannot_be_used_is_refused(rule: object, problem: str) -> None:
    with pytest.raises(PluginError) as refused:
        NO_PLUGINS.add("plugin mine.py", [LEAST, rule], [])
    assert str(refused.value).startswith(f"plugin mine.py: PREDICATES[1]{' ' * (problem[0] == '(')}{problem}")


@pytest.mark.parametrize("rules", [LEAST, 5, {"leastPods": LEAST}])
def test_rules_are_a_list(rules: object) -> None:
    with pytest.raises(PluginError, match=r"^plugin mine\.py: PREDICATES must be a list of rules, not a "):
        NO_PLUGINS.add("plugin mine.py", rules, [])


def test_two_rules_with_one_name_are_refused() -> None:
    with pytest.raises(PluginError, match=r"PREDICATES\[1\] \(leastPods\): two rules have this name"):
        NO_PLUGINS.add("plugin a.py", [LEAST, LEAST], [])
    with pytest.raises(
        PluginError, match=r"^plugin b\.py: PREDICATES\[0\] \(leastPods\): plugin a\.py has a rule of this name"
    ):
        NO_PLUGINS.add("plugin a.py", [LEAST], []).add("plugin b.py", [LEAST], [])
