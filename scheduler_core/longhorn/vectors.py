"""Replays recorded decisions of the real Longhorn: ``python -m scheduler_core.longhorn.vectors FILE.jsonl [...]``.

Every line is a scenario, a question and what Longhorn answered. Where Longhorn's answer depends on chance, the engine's
set of possible outcomes must contain everything recorded, and all other outcomes in it must be due to chance. Where
Longhorn's answer was always the same, the sets must be equal. Reasons are compared as sets; texts for people are not
compared.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from scheduler_core.convert.recorded_decisions import InputError, Runner
from scheduler_core.longhorn.cluster import Cluster
from scheduler_core.longhorn.conformance import QUESTIONS, Answer, Answers, Json, RecordedQuestion, read_cluster
from scheduler_core.longhorn.stages import one_manager_per_node

_MAX_CHARACTERS: Final = 400


def check(vector: Json) -> str:
    """The difference between a recorded decision and the engine's, "" for none."""
    question = QUESTIONS[vector["schedule"]["op"]]
    cluster, recorded = _read(vector, question)
    possible = _possible_answers(vector, question, cluster)
    by_chance = vector["decision"]["result"].get("deterministic") is False
    extra = {answer for answer, chance in possible.items() if answer not in recorded and not (by_chance and chance)}
    if recorded <= possible.keys() and not extra:
        return ""
    heading = f"{vector.get('id')} ({vector['note']})" if vector.get("note") else str(vector.get("id"))
    decided = question.describe_rules(cluster, vector)
    return f"{heading}\n  expected {_format_answers(recorded)}\n  got      {_format_answers(possible)}\n  decided  {decided}"


def _read(vector: Json, question: RecordedQuestion) -> tuple[Cluster, frozenset[Answer]]:
    try:
        return read_cluster(vector), frozenset(question.read_answers(vector["decision"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{vector.get('id')}: not a recorded decision: {error!r}") from error


def _possible_answers(vector: Json, question: RecordedQuestion, cluster: Cluster) -> Answers:
    clusters = list(one_manager_per_node(cluster))
    possible: Answers = {}
    try:
        for visible_cluster in clusters:
            for answer, chance in question.answer(visible_cluster, vector).items():
                possible[answer] = possible.get(answer, False) or chance or len(clusters) > 1
    except KeyError as error:
        raise InputError(f"{vector.get('id')}: the question names {error}, which the scenario lacks") from error
    return possible


def _format_answers(answers: Iterable[object]) -> str:
    text = " | ".join(sorted(str(answer) for answer in answers)) or "nothing"
    return text if len(text) <= _MAX_CHARACTERS else text[:_MAX_CHARACTERS] + "..."


class _Schedule(msgspec.Struct, rename="camel"):
    op: str
    volume: str = ""
    replica: str = ""
    hard_node_affinity: str = ""
    node: str = ""
    disk: str = ""
    size: int = 0
    required: int = 0
    new_size: int = 0
    topology: dict[str, str] = {}
    parameters: dict[str, str] = {}
    collected: dict[str, dict[str, str | int]] | None = None


class _Decision(msgspec.Struct):
    result: dict[str, Any]
    errors: list[str]


class _Vector(msgspec.Struct):
    id: str
    nodes: list[dict[str, Any]]
    schedule: _Schedule
    decision: _Decision


def _find_problem(vector: _Vector) -> str:
    if vector.schedule.op in QUESTIONS:
        return ""
    return f"schedule.op {vector.schedule.op!r} is none of {', '.join(QUESTIONS)}"


RUNNER: Final = Runner(
    "scheduler_core.longhorn.vectors",
    "Replays recorded decisions of the real Longhorn through the policy engine.",
    _Vector,
    _find_problem,
    check,
)

if __name__ == "__main__":
    sys.exit(RUNNER.main(sys.argv[1:]))
