"""The text with the commands to type next, printed when the stack has started."""

import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.build import KUBECTL
from devcluster.programs import primary_address
from devcluster.stack import ROOT, Stack
from devcluster.watch import RESTART_DELAY


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """The values that the text depends on.

    Attributes:
        kubeconfig: the administrator's kubeconfig
        kubectl: the folder with kubectl; None if one is on PATH
        example: the StatefulSet to apply
        address: the address of the leader; "" if kube-scheduler knows no extender
        leader: the candidate that answers and its process id; None if none runs
        others: the other candidates
        serve: the command that runs a candidate by hand
        simulator: the URL of the simulator
        prometheus: the URL of Prometheus, or ""
        logs: the folder of the logs
    """

    kubeconfig: Path
    kubectl: Path | None
    example: Path
    address: str
    leader: tuple[str, int] | None
    others: Sequence[str]
    serve: Sequence[str]
    simulator: str
    prometheus: str
    logs: Path


def facts(stack: Stack, binaries: Path, folder: Path, *, registered: bool) -> StackFacts:
    """A running stack's values, with paths relative to `folder` where possible."""
    answering = stack.answering()
    leader = (answering[0], stack.cluster.processes[answering[0]].pid) if answering else None
    program = _relative(Path(sys.executable).with_name("longhorn-extender"), folder)
    serve = [str(program), "serve", "--kubeconfig", str(stack.account), "--host", primary_address()]
    return StackFacts(
        kubeconfig=stack.cluster.kubeconfig,
        kubectl=None if shutil.which(KUBECTL) else binaries,
        example=_relative(ROOT / "examples/dev/statefulset.yaml", folder),
        address=stack.address if registered else "",
        leader=leader,
        others=[name for name in stack.candidates if name not in answering],
        serve=serve,
        simulator=stack.simulator_url,
        prometheus=stack.prometheus_url,
        logs=stack.cluster.logs,
    )


def _relative(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def text(facts: StackFacts) -> str:
    """The whole text; with short paths it fits 80 columns."""
    first = [f"export KUBECONFIG={shlex.quote(str(facts.kubeconfig))}"]
    if facts.kubectl is not None:
        first.append(f'export PATH="$PATH:{facts.kubectl}"    # kubectl is not installed: this one was built')
    first += [f"kubectl apply -f {shlex.quote(str(facts.example))}", "kubectl get pods -o wide -w"]
    blocks = [("The cluster runs until Ctrl-C. In another terminal:", first)]
    if facts.address and facts.leader is not None:
        name, number = facts.leader
        lines = [f"curl -s http://{facts.address}/state    # as {name} sees it; /docs has all routes"]
        if facts.others:
            lines.append(
                f"kill -9 {number}    # {name}: see another one take over; it is back {RESTART_DELAY:g} s later"
            )
        blocks.append(("The extender, where kube-scheduler finds it:", lines))
    elif facts.address:
        blocks.append(("kube-scheduler finds no extender yet; run one:", [shlex.join(facts.serve)]))
    blocks.append(("Longhorn, as the simulator sees it:", [f"curl -s {facts.simulator}/status"]))
    paragraphs = "\n".join(f"{title}\n\n{textwrap.indent(chr(10).join(lines), '  ')}\n" for title, lines in blocks)
    ends = [f"Prometheus: {facts.prometheus}"] if facts.prometheus else []
    return "\n".join(["", paragraphs, *ends, f"Logs: {facts.logs}"])
