"""Every state of the model of hand-overs (`tests/worlds/hand_over_model.py`), with one fault at every step; docs/reservations.md has its bounds.

Each rule of the design is broken once on purpose: the model then has a state in which something does not hold.
"""

from typing import Any

import pytest

from tests.worlds.hand_over_model import KILL, LOSE, PAUSE, Design, Model

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

_NO_FAULT = 0


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(_NO_FAULT, id="no fault"),
        pytest.param(KILL, id="a kill or SIGTERM"),
        pytest.param(PAUSE, id="a pause"),
        pytest.param(LOSE, id="a lost message"),
    ],
)
def test_one_answer_one_plan_nothing_forgotten_and_every_review_ends(fault: int) -> None:
    """In every state, whichever step the fault comes at."""
    states, way = Model(Design(), fault).explore()
    assert way == []
    assert states > 1000


@pytest.mark.parametrize(
    ("broken", "fault", "problem"),
    [
        pytest.param({"fenced": False}, PAUSE, "two processes answer", id="an answer after the fence"),
        pytest.param({"restores": False}, KILL, "forgot pod", id="a successor without the record"),
        pytest.param({"waits": False}, KILL, "forgot pod", id="a successor that trusts a record that may lack offers"),
        pytest.param({"times_out": False}, PAUSE, "never ends", id="a review without a time-out"),
        pytest.param(
            {"remembers": False}, _NO_FAULT, "two plans", id="answers are forgotten before a watch shows them"
        ),
        pytest.param({"reviewers": "any"}, _NO_FAULT, "two plans", id="any process is asked first"),
        pytest.param({"reads": False}, KILL, "two plans", id="a standby that does not read what was written"),
        pytest.param({"leader_reads": False}, LOSE, "two plans", id="a leader that does not read what was written"),
        pytest.param({"hangs_up": False}, PAUSE, "two plans", id="a former leader that is still asked"),
        pytest.param({"stored_first": False}, KILL, "two plans", id="a write that is stored after the next review"),
    ],
)
def test_a_broken_rule_is_found(broken: dict[str, Any], fault: int, problem: str) -> None:
    """The model finds a shortest way to what does not hold."""
    _, way = Model(Design(**broken), fault).explore()
    assert problem in "".join(way[-1:])
