"""What somebody who has just started the stack is told to type next."""

from __future__ import annotations

import shlex
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.components import KUBECTL
from devcluster.programs import primary_address
from devcluster.stack import ROOT, Stack
from devcluster.watch import AGAIN_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the text depends on.

    Attributes:
        kubeconfig: the administrator's
        kubectl: the folder with kubectl; None if one is on PATH
        example: the StatefulSet to apply
        address: where the leader is found; "" if kube-scheduler knows no extender
        leader: the candidate that answers and its process id; None if none runs
        others: the other candidates
        serve: the command that runs a candidate by hand
        simulator: where the simulator tells what it sees
        prometheus: where Prometheus answers, or ""
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


def facts(stack: Stack, binaries: Path, folder: Path, *, registered: bool) -> Facts:
    """What there is to say about a stack that runs, to somebody in this folder."""
    answering = stack.answering()
    leader = (answering[0], stack.cluster.processes[answering[0]].pid) if answering else None
    program = _short(Path(sys.executable).with_name("longhorn-extender"), folder)
    serve = [str(program), "serve", "--kubeconfig", str(stack.account), "--host", primary_address()]
    return Facts(
        kubeconfig=stack.cluster.kubeconfig,
        kubectl=None if shutil.which(KUBECTL) else binaries,
        example=_short(ROOT / "examples/dev/statefulset.yaml", folder),
        address=stack.address if registered else "",
        leader=leader,
        others=[name for name in stack.candidates if name not in answering],
        serve=serve,
        simulator=stack.simulator_url,
        prometheus=stack.prometheus_url,
        logs=stack.cluster.logs,
    )


def _short(path: Path, folder: Path) -> Path:
    return path.relative_to(folder) if path.is_relative_to(folder) else path


def text(it: Facts) -> str:
    """The whole of it, for a terminal of 80 columns where paths are short enough."""
    first = [f"export KUBECONFIG={shlex.quote(str(it.kubeconfig))}"]
    if it.kubectl is not None:
        first.append(f'export PATH="$PATH:{it.kubectl}"    # kubectl is not installed: this one was built')
    first += [f"kubectl apply -f {shlex.quote(str(it.example))}", "kubectl get pods -o wide -w"]
    blocks = [("The cluster runs until Ctrl-C. In another terminal:", first)]
    if it.address and it.leader is not None:
        name, number = it.leader
        lines = [f"curl -s http://{it.address}/state    # as {name} sees it; /docs has all routes"]
        if it.others:
            lines.append(
                f"kill -9 {number}    # {name}: see another one take over; it is back {AGAIN_SECONDS:g} s later"
            )
        blocks.append(("The extender, where kube-scheduler finds it:", lines))
    elif it.address:
        blocks.append(("kube-scheduler finds no extender yet; run one:", [shlex.join(it.serve)]))
    blocks.append(("Longhorn, as the simulator sees it:", [f"curl -s {it.simulator}/status"]))
    said = "\n".join(f"{title}\n\n{textwrap.indent(chr(10).join(lines), '  ')}\n" for title, lines in blocks)
    ends = [f"Prometheus: {it.prometheus}"] if it.prometheus else []
    return "\n".join(["", said, *ends, f"Logs: {it.logs}"])
