"""The policy of `serve --policy` as plain data: part of the stable JSON of `/state`."""

from __future__ import annotations

from pydantic import Field

from app.schemas.explain import Answer
from scheduler_core.generic.policy import Policy


class PolicyAnswer(Answer):
    """The policy in force, and what is wrong with its file."""

    file: str
    predicates: list[str] = Field(description="by their names in the policy, in its order")
    priorities: dict[str, int] = Field(description="their weights, by their names in the policy")
    warnings: list[str] = Field(description="what was read but is odd")
    problem: str = Field(description="why the file as it is now was refused; empty if it was not")
    pending: bool = Field(description="whether a newer policy waits until everything that it reads is known")


def policy_answer(file: str, policy: Policy, problem: str, *, pending: bool) -> PolicyAnswer:
    """Returns a policy as data."""
    return PolicyAnswer(
        file=file,
        predicates=[entry.name for entry in policy.predicates],
        priorities={entry.name: entry.weight for entry in policy.priorities},
        warnings=list(policy.warnings),
        problem=problem,
        pending=pending,
    )
