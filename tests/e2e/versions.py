"""The report's part for one version of Kubernetes: the plan's goals, a hand-over and a preemption. `--kubernetes-version` names the
version; docs/limitations.md says which ones were run.
"""

import threading
from pathlib import Path

from devcluster import build, kubernetes_version
from scheduler_core.structs import replace
from tests.e2e import goals, plan, preemption
from tests.e2e.bursts import wait_for_result
from tests.e2e.leader_monitor import LeaderMonitor
from tests.e2e.placement_audit import PlacementAudit
from tests.e2e.report import Figures, Options, Part
from tests.e2e.rig import Rig

_REPETITIONS = 2  # one for each form of the request
_LONGEST_SILENCE = 2.0


def report(folder: Path, options: Options) -> Part:
    """Runs everything on two rigs, the goals first."""
    kubernetes = kubernetes_version.choose(None, build.pinned_version())
    goal_part = goals.report(folder / "goals", replace(options, repetitions=options.repetitions or _REPETITIONS))
    with Rig(folder / "leaders", candidates=2) as rig:
        figures = _hand_over(rig)
        preempted = preemption.run(rig)
    figures.figures += [("preemption", str(preempted)), ("Kubernetes", kubernetes)]
    failures = [*goal_part.failures, *figures.problems, *preempted.problems]
    return Part(failures, figures.figures, [*goal_part.drawn, figures.text()])


def _hand_over(rig: Rig) -> Figures:
    """Ends the leader in the middle of goal 1's burst."""
    plan.goal_1_nodes(rig)
    with LeaderMonitor(rig) as monitor, PlacementAudit(rig) as audit:
        plan.start_goal_1(rig)
        leader = rig.wait_for_leader()
        stopper = threading.Thread(target=rig.cluster.processes[leader].stop)
        stopper.start()
        rig.until("another candidate answers", lambda: rig.leader() not in ("", leader))
        stopper.join()
        result = wait_for_result(rig, "race", 16, audit, must=True)
    rig.remove("race")
    rig.start_candidate(leader)
    silence = monitor.longest_silence
    checks = {
        f"pods per node: {result.per_node}": result.per_node == plan.EVEN,
        f"misplaced: {result.misplaced}, mended: {result.mended}": not result.misplaced and not result.mended,
        f"stuck: {result.stuck}": not result.stuck,
        f"no answer for {silence:.1f} s": silence <= _LONGEST_SILENCE,
        f"two answered at once: {monitor.double_answers}": not monitor.double_answers,
    }
    return Figures(
        [f"hand-over: {problem}" for problem, holds in checks.items() if not holds],
        [("hand-over", figure) for figure in checks],
    )
