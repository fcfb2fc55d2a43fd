"""What the outside relies on, as texts by file name. These are help pages, OpenAPI, metrics, log events, manifests and vectors.
`python -m tests.contract.frozen` writes them to `tests/golden/contract`; `test_frozen.py` compares them.
"""

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client import CollectorRegistry

from app.bootstrap import create_app
from app.disk_schedule.controller_base import ControllerMetrics
from app.disk_schedule.controller_cache import ControllerCache
from app.extender.metrics import Metrics, Outstanding
from app.kube.reflector import CacheStatus, Timing
from app.memory_budget import MemoryBudget
from app.runtime.connections import ServerMetrics
from app.runtime.logs import ProblemLog
from app.scheduler.api_calls import SchedulerMetrics
from app.settings import Settings
from scheduler_core.model.snapshot import Snapshot
from scheduler_core.predict.node_loss import NodeLossOutcome
from tests import builders as make
from tests.manifests.kustomize import kustomize

ROOT = Path(__file__).parents[2]
GOLDENS = ROOT / "tests/golden/contract"
COMMANDS = (
    "",
    "serve",
    "explain",
    "top",
    "waiting",
    "decisions",
    "doctor",
    "what-if",
    "headroom",
    "maintenance",
    "remedies",
    "rebalance",
    "scheduler-config",
    "snapshot",
    "schedule",
    "disk-schedule",
    "policy check",
)
_LEVELS = frozenset({"debug", "info", "warning", "error", "exception"})
_INDIRECT = frozenset({"tell", "write"})


def help_page(command: str) -> str:
    """What `longhorn-extender COMMAND --help` prints, 100 columns wide."""
    words = command.split()
    environment = {**os.environ, "COLUMNS": "100", "TERMINAL_WIDTH": "100", "NO_COLOR": "1"}
    return subprocess.run(
        [str(Path(sys.executable).parent / "longhorn-extender"), *words, "--help"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def openapi() -> str:
    app = create_app(Snapshot(), Settings(), datetime(2026, 1, 1, tzinfo=UTC))
    return json.dumps(app.openapi(), indent=1, sort_keys=True)


def _families(program: str, registry: CollectorRegistry) -> Iterator[str]:
    for family in registry.collect():
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le", "quantile"})
        yield f"{program} {family.name} {family.type} {','.join(labels)}"


def extender_registry() -> CollectorRegistry:
    """Every metric of the extender, with at least one sample each."""
    extender = Metrics()
    extender.outstanding(lambda: Outstanding({}, 0, 0, 0, 0, 0, 0, 0))
    closed = make.longhorn_node("node", ready=False)
    extender.capacity(lambda: make.state(closed, make.storage_class()))
    loss = NodeLossOutcome("node", orders=1, pods=0, volumes=0, problems={})
    extender.node_losses(lambda: {"node": loss})
    extender.caches(lambda: {"nodes": CacheStatus()}, lambda: 0.0)
    extender.heartbeat.labels("node").set(0)
    extender.request_memory(MemoryBudget(1))
    extender.guard_proven()
    ServerMetrics(extender.registry)
    return extender.registry


def metrics() -> str:
    """Name, type and labels of every metric of the three programs."""
    controllers = ControllerMetrics()
    controllers.expect(["volume"])
    now, timing = (lambda: datetime(2026, 1, 1, tzinfo=UTC)), Timing(lambda: 0.0, lambda low, high: (low + high) / 2)
    controllers.watch(ControllerCache(None, "longhorn-system", timing, now, 60.0), lambda: 0.0)  # type: ignore[arg-type]
    scheduler = SchedulerMetrics()
    lines = [
        *_families("extender", extender_registry()),
        *_families("disk-schedule", controllers.registry),
        *_families("schedule", scheduler.registry),
    ]
    return "\n".join(sorted(lines)) + "\n"


def _events(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        function = node.func
        is_method = isinstance(function, ast.Attribute)
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in (_LEVELS if is_method else _INDIRECT):
            fields = sorted(entry.arg for entry in node.keywords if entry.arg is not None)
            for text in _texts(node.args[0]):
                yield f"{text} {fields}"
        elif name == ProblemLog.__name__:
            _, begin, end = node.args
            yield from (f"{text} ['problem']" for text in _texts(begin))
            yield from (f"{text} []" for text in _texts(end))


def _texts(node: ast.AST) -> Iterable[str]:
    return (entry.value for entry in ast.walk(node) if isinstance(entry, ast.Constant) and isinstance(entry.value, str))


def log_events() -> str:
    events = {event for path in sorted((ROOT / "app").rglob("*.py")) for event in _events(ast.parse(path.read_text()))}
    return "\n".join(sorted(events)) + "\n"


def manifests() -> str:
    """What kustomize makes of every folder of manifests that has a kustomization."""
    texts = []
    for path in sorted((ROOT / "manifests").rglob("kustomization.yaml")):
        folder = path.parent
        if "kind: Component" in path.read_text():
            continue
        texts.append(f"##### {folder.relative_to(ROOT)}\n{kustomize(folder)}")
    return "\n".join(texts)


def vectors() -> str:
    """The closing lines of both runners of recorded decisions."""
    lines = []
    for package in ("longhorn", "generic"):
        files = sorted(str(path) for path in (ROOT / "tests/golden" / package).glob("*.jsonl"))
        done = subprocess.run(
            [sys.executable, "-m", f"scheduler_core.{package}.vectors", *files],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        lines.append(f"{package}: {done.stdout.strip().splitlines()[-1]}")
    return "\n".join(lines) + "\n"


def frozen_texts() -> dict[str, str]:
    """Everything, by file name."""
    texts = {f"help-{command.replace(' ', '-') or 'main'}.txt": help_page(command) for command in COMMANDS}
    return texts | {
        "openapi.json": openapi(),
        "metrics.txt": metrics(),
        "log-events.txt": log_events(),
        "manifests.yaml": manifests(),
        "vectors.txt": vectors(),
    }


if __name__ == "__main__":
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for name, text in frozen_texts().items():
        (GOLDENS / name).write_text(text)
