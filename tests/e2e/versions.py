"""The report's part for one version of Kubernetes: the plan's goals, a hand-over and a preemption. `--kubernetes-version` names the
version; docs/limitations.md says which ones were run.
"""

import threading
from pathlib import Path
from typing import Final

from devcluster import build, kubernetes_version
from tests.e2e import goals, plan, preemption
from tests.e2e.goals import Row
from tests.e2e.leader_monitor import LeaderMonitor
from tests.e2e.objects import statefulset
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.rig import RECOMMENDED_MANAGED, Rig
from tests.e2e.size import Outcome

_REPETITIONS: Final = 2  # one for each form of the request
_LONGEST_SILENCE: Final = 2.0


def run(folder: Path, repetitions: int | None) -> tuple[list[Row], Outcome]:
    """Runs everything on two rigs, the goals first; returns their rows, and everything else."""
    outcome = Outcome()
    outcome.figures.append(("Kubernetes", kubernetes_version.choose(None, build.pinned_version())))
    rows = goals.run(folder / "goals", repetitions or _REPETITIONS, lambda _: None)
    outcome.problems += goals.failures(rows)
    with Rig(folder / "leaders", candidates=2, config=RECOMMENDED_MANAGED) as rig:
        _hand_over(rig, outcome)
        preempted = preemption.run(rig)
        outcome.figures.append(("preemption", str(preempted)))
        outcome.problems += preempted.problems
    return rows, outcome


def _hand_over(rig: Rig, outcome: Outcome) -> None:
    """Ends the leader in the middle of goal 1's burst."""
    plan.goal_1_nodes(rig)
    with LeaderMonitor(rig) as monitor, PlacementAudit(rig) as audit:
        rig.create(statefulset("race", group="race", replicas=16))
        rig.until("some pods have a node", lambda: sum(map(bool, rig.nodes_of("race").values())) >= 3)
        leader = rig.until("a candidate answers", rig.leader)
        stopper = threading.Thread(target=rig.cluster.processes[leader].stop)
        stopper.start()
        successor = rig.until("another candidate answers", lambda: rig.leader() not in ("", leader))
        stopper.join()
        result = plan.wait_for_result(rig, "race", 16, audit, must=True)
    rig.remove("race")
    rig.start_candidate(leader)
    silence = monitor.longest_silence
    outcome.figures.append(("hand-over: pods per node", str(list(result.per_node.values()))))
    outcome.figures.append(("hand-over: misplaced, mended ones included", str(len(result.misplaced) + result.mended)))
    outcome.figures.append(("hand-over: longest time without an answer", f"{silence:.1f} s"))
    checks = {
        f"pods per node: {result.per_node}": list(result.per_node.values()) == [4, 4, 4, 4],
        f"misplaced: {result.misplaced}, mended: {result.mended}": not result.misplaced and not result.mended,
        f"stuck: {result.stuck}": not result.stuck,
        f"no answer for {silence:.1f} s": successor and silence <= _LONGEST_SILENCE,
        f"two answered at once: {monitor.double_answers}": not monitor.double_answers,
    }
    outcome.problems += [f"hand-over: {problem}" for problem, holds in checks.items() if not holds]
