"""Rules of plugins: names, arguments, scores, and failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from scheduler_core.cooperative import run_to_end
from scheduler_core.generic.cycle_state import CycleState
from scheduler_core.generic.node_info import NodeInfo
from scheduler_core.generic.plugin_rules import PluginError, PluginRule, Plugins, PredicatePlugin, PriorityPlugin
from scheduler_core.generic.policy import Policy, PolicyError, parse_policy
from scheduler_core.generic.policy_filter import policy_refusals
from scheduler_core.generic.predicates import Check
from tests.worlds.policy_rules import decide, node, pod, state

CLUSTER = state([node("a", pods=1), node("b", pods=5)])


@dataclass(frozen=True)
class Least:
    """An argument."""

    pods: int
    strict: bool = False


def has_room(_: CycleState, argument: Least) -> Check:
    """Whether the node takes so many pods."""
    return lambda node_info: "" if node_info.node.pods >= argument.pods else "too few pods"


LEAST = PredicatePlugin("leastPods", has_room, Least)


def policy_with(*predicates: PredicatePlugin, priorities: Sequence[PriorityPlugin] = (), text: str = "") -> Policy:
    """The policy in a text, or one with all rules, which have no arguments."""
    plugins = Plugins.of(predicates, priorities)
    names = ",".join(f'{{"name": "{rule.name}"}}' for rule in predicates)
    weights = ",".join(f'{{"name": "{rule.name}", "weight": 1}}' for rule in priorities)
    return parse_policy((text or f'{{"predicates": [{names}], "priorities": [{weights}]}}').encode(), plugins)


def with_argument(argument: str) -> Policy:
    """A policy with one rule and this argument."""
    return policy_with(LEAST, text=f'{{"predicates": [{{"name": "Roomy", "argument": {{"leastPods": {argument}}}}}]}}')


def test_an_argument_has_the_type_that_the_plugin_defines() -> None:
    """Fields with defaults may be absent."""
    assert with_argument('{"pods": 3}').predicates[0].argument == Least(3)


@pytest.mark.parametrize(
    ("argument", "problem"),
    [
        ('{"pods": "3"}', "leastPods: pods: Expected `int`, got `str`"),
        ("{}", "leastPods: Object missing required field `pods`"),
        ('{"pods": 3, "stict": true}', "leastPods: 'stict' is not known; there are pods, strict"),
        ("[3]", "leastPods: Expected `object`, got `array`"),
    ],
)
def test_a_wrong_argument_is_named(argument: str, problem: str) -> None:
    """With the entry, the rule and the field."""
    with pytest.raises(PolicyError) as refused:
        with_argument(argument)
    assert problem in str(refused.value)
    assert "predicates[0] (Roomy)" in str(refused.value)


def test_a_predicate_refuses_nodes() -> None:
    """With its text, under its name in the policy."""
    decision = decide(pod(), CLUSTER, with_argument('{"pods": 3}'))
    assert decision.node == "b"
    (failure,) = decision.failures["a"]
    assert (failure.predicate, failure.text) == ("Roomy", "too few pods")


@pytest.mark.parametrize("eviction_helps", [True, False])
def test_the_extender_applies_a_predicate(eviction_helps: bool) -> None:
    """The plugin says whether preemption may help."""
    rule = PredicatePlugin("leastPods", has_room, Least, eviction_helps)
    text = '{"predicates": [{"name": "Roomy", "argument": {"leastPods": {"pods": 3}}}]}'
    refusals = run_to_end(policy_refusals(pod(), ["a", "b"], CLUSTER, policy_with(rule, text=text)))
    assert {name: (refusal.text, refusal.unresolvable) for name, refusal in refusals.items()} == {
        "a": ("Roomy: too few pods", not eviction_helps)
    }


def priority(scores: Callable[[Sequence[NodeInfo]], Any]) -> Policy:
    """A policy with one priority."""
    return policy_with(priorities=[PriorityPlugin("Mine", lambda _, __, node_infos: scores(node_infos))])


def test_scores_are_cut_off_to_whole_numbers_from_0_to_10() -> None:
    """Whatever the plugin returns."""
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
    [
        (lambda _: 1 // 0, "ZeroDivisionError"),
        (lambda _: None, "TypeError: a check returned None, expected a text"),
    ],
)
def test_a_predicate_that_fails_is_named(check: Check, problem: str) -> None:
    """The pod gets no node, because nothing was decided."""
    decision = decide(pod(), CLUSTER, policy_with(PredicatePlugin("Mine", lambda _, __: check)))
    assert decision.node == ""
    assert decision.error.startswith(f"plugin rule Mine failed: {problem}")


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (PredicatePlugin("HostName", has_room), "a rule of this package has this name"),
        (PredicatePlugin("serviceAffinity", has_room, Least), "a rule of this package has this name"),
        (PredicatePlugin("LonghornMine", has_room), "names with Longhorn"),
        (PredicatePlugin("leastPods", has_room), "begins with a capital"),
        (PredicatePlugin("LeastPods", has_room, Least), "begins with a lower-case letter"),
        (PredicatePlugin("no name", has_room), "letters, digits and _"),
        (PriorityPlugin("Mine", lambda _, __, ___: []), "is not a predicate plugin"),
    ],
)
def test_a_name_that_is_not_allowed_is_refused(rule: PluginRule, problem: str) -> None:
    """Before any policy is read."""
    with pytest.raises(PluginError, match=problem):
        Plugins.of([rule], [])  # type: ignore[list-item]


def test_two_plugins_with_one_name_are_refused() -> None:
    """Neither wins."""
    with pytest.raises(PluginError, match="two plugins have this name"):
        Plugins.of([LEAST, LEAST], [])
