"""2,000 answers of the application over random clusters, as one line per request.

A line has a digest of the body: `python -m tests.contract.answers` writes the lines, and some bodies in full, to
`tests/golden/answers`; `--show N` prints the request and the answer of line N, to be compared with those of an older commit.

Data flow: a seed draws a cluster -> requests about its pods -> the application, in virtual time -> status and body.
"""

import argparse
import json
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from structlog.testing import capture_logs

from app.api.app_state import AppState
from app.bootstrap import application, create_app
from app.evaluator import Evaluator
from app.extender.metrics import Metrics
from app.extender.offers import Offers
from app.extender.verbs import Verbs
from app.memory_budget import MemoryBudget
from app.policy import PolicyInForce
from app.runtime.decision_thread import OnCallersThread
from app.settings import DEFAULT_MAX_BODY, DEFAULT_REQUEST_MEMORY, Settings
from scheduler_core.decide.decision import FilterOptions, Packing
from scheduler_core.decide.extender_settings import ExtenderSettings
from tests import builders as make
from tests.builders import Object
from tests.worlds.claim_clusters import draw_cluster
from tests.worlds.remedies import draw_full_world, draw_world
from tests.worlds.service import by_names, by_nodes, http_client
from tests.worlds.state_source import FakeStateSource
from tests.worlds.tight_clusters import TightCluster
from tests.worlds.virtual_time import run, virtual_loop

GOLDENS = Path(__file__).parents[1] / "golden/answers"
ANSWERS = 2000
# Every so many answers one is kept in full.
_KEPT = 33
_PATHS = ("/filter", "/prioritize", "/explain")
_SELECTED_NODE = "volume.kubernetes.io/selected-node"


@dataclass(frozen=True, slots=True)
class Answer:
    """A request and its answer; `world` says how the cluster was drawn."""

    world: str
    path: str
    request: Object
    status: int
    body: bytes

    @property
    def offered(self) -> int:
        """How many nodes the pod may use."""
        answer = self._value
        if self.path == "/prioritize":
            return sum(entry["Score"] > 0 for entry in answer)
        if self.path == "/filter":
            return len(_offered_nodes(answer))
        return sum(entry["fits"] for entry in answer["nodes"].values())

    @property
    def kind(self) -> str:
        """What the line says about the answer."""
        answer = self._value
        if self.status != 200 or (isinstance(answer, dict) and answer.get("Error")):
            return "error"
        names = self.request["NodeNames"]
        nodes = len(names if names is not None else self.request["Nodes"]["items"])
        return f"{self.offered} of {nodes} nodes"

    @property
    def _value(self) -> Any:
        value: Any = json.loads(self.body)
        return value

    def line(self, number: int) -> str:
        return f"{number:04} {self.world} {self.path} {self.status} {self.kind} {sha256(self.body).hexdigest()[:16]}"

    def text(self, number: int) -> str:
        return f"{self.line(number)}\n{json.dumps(self._value, indent=1)}\n"


def _offered_nodes(answer: Object) -> list[str]:
    if answer["NodeNames"] is not None:
        return list(answer["NodeNames"])
    items = (answer["Nodes"] or {}).get("items", ())
    return [entry["metadata"]["name"] for entry in items]


def _tight_objects(chance: random.Random) -> list[Object]:
    return TightCluster.draw(chance.randrange(2**32)).objects()


def _claim_objects(chance: random.Random) -> list[Object]:
    cluster = draw_cluster(chance)
    names = [f"claim-{number}" for number in range(len(cluster.claims))]
    return [*cluster.objects(names), make.pod(*names[: cluster.own])]


# How clusters are drawn, and how many answers there are over each kind.
_WORLDS: dict[str, tuple[Callable[[random.Random], list[Object]], int]] = {
    "claims": (_claim_objects, 500),
    "remedies": (lambda chance: draw_world(chance).objects, 500),
    "full": (lambda chance: draw_full_world(chance).objects, 200),
    "tight": (_tight_objects, 300),
}
_OFFERS = ANSWERS - sum(answers for _, answers in _WORLDS.values())


def _options(chance: random.Random) -> FilterOptions:
    return FilterOptions(packing=chance.choice(list(Packing)), require_best_effort=chance.random() < 0.7)


def _node_names(objects: Iterable[Object]) -> list[str]:
    return sorted({entry["metadata"]["name"] for entry in objects if entry["kind"] == "Node"})


def _without_one(objects: list[Object], chance: random.Random) -> list[Object]:
    """The objects, of which one in a quarter of the clusters is missing, but no pod."""
    missing = chance.choice([entry for entry in objects if entry["kind"] != "Pod"])
    return [entry for entry in objects if entry is not missing] if chance.random() < 0.25 else objects


def _request(chance: random.Random, pod: Object, names: list[str]) -> Object:
    """A request in either form, about most nodes, in any order; some name a node that is not there."""
    names = chance.sample(names, max(1, len(names) - chance.choice((0, 0, 1))))
    if chance.random() < 0.1:
        names.append("gone")
    return (by_names if chance.random() < 0.7 else by_nodes)(pod, names)


async def _ask(app: FastAPI, world: str, path: str, request: Object) -> Answer:
    async with http_client(app) as client:
        response = await client.post(path, json=request)
    return Answer(world, path, request, response.status_code, response.content)


async def _snapshot_answers(kind: str, draw: Callable[[random.Random], list[Object]]) -> AsyncIterator[Answer]:
    for seed in count():
        chance = random.Random(f"{kind} {seed}")  # noqa: S311 # repeatable, not secret
        objects = _without_one([make.storage_class(), *draw(chance)], chance)
        settings = Settings(options=_options(chance), alone=chance.random() < 0.2)
        app = create_app(make.snapshot(objects), settings, make.NOW, runner=OnCallersThread())
        pods = [entry for entry in objects if entry["kind"] == "Pod"]
        pods.sort(key=lambda raw: bool(raw["spec"]["nodeName"]))
        for pod in [pods[0], *chance.sample(pods[1:], min(1, len(pods) - 1))]:
            for path in _PATHS:
                request = _request(chance, pod, _node_names(objects))
                yield await _ask(app, f"{kind}-{seed}", path, request)


async def _offer_answers() -> AsyncIterator[Answer]:
    """Answers in bursts: each pod meets the offers to the pods before it, for half of which a node is selected."""
    for seed in count():
        chance = random.Random(f"offers {seed}")  # noqa: S311 # repeatable, not secret
        cluster = TightCluster.draw(seed)
        objects = cluster.objects()
        cache = FakeStateSource(*objects)
        app = _application_with_offers(cache, _options(chance))
        for pod in [entry for entry in objects if entry["kind"] == "Pod"][:12]:
            answers = [
                await _ask(app, f"offers-{seed}", path, _request(chance, pod, _node_names(objects))) for path in _PATHS
            ]
            for answer in answers:
                yield answer
            offered = _offered_nodes(json.loads(answers[0].body))
            if offered and chance.random() < 0.5:
                _select_node(cache, cluster, pod, chance.choice(sorted(offered)))


def _application_with_offers(cache: FakeStateSource, options: FilterOptions) -> FastAPI:
    clock = virtual_loop().time
    settings = ExtenderSettings(enabled=True)
    evaluator = Evaluator(cache, options)
    metrics = Metrics()
    offers = Offers(cache, evaluator, lambda: settings, metrics, clock)
    verbs = Verbs(evaluator, PolicyInForce(), decider=offers)
    return application(AppState(evaluator, verbs, metrics, DEFAULT_MAX_BODY, MemoryBudget(DEFAULT_REQUEST_MEMORY)))


def _select_node(cache: FakeStateSource, cluster: TightCluster, pod: Object, node: str) -> None:
    for entry in cluster.pods[pod["metadata"]["name"]]:
        raw = make.claim(entry.name, entry.size, storage_class=entry.storage_class)
        raw["metadata"]["annotations"] = {_SELECTED_NODE: node}
        cache.put(raw)


async def _collect() -> list[Answer]:
    answers: list[Answer] = []
    sources = [(_snapshot_answers(kind, draw), wanted) for kind, (draw, wanted) in _WORLDS.items()]
    for source, wanted in [*sources, (_offer_answers(), _OFFERS)]:
        end = len(answers) + wanted
        async for answer in source:
            answers.append(answer)
            if len(answers) == end:
                break
    return answers


def recorded_answers() -> list[Answer]:
    with capture_logs():
        return run(_collect())


def frozen_answers() -> dict[str, str]:
    """The lines, and every 33rd answer in full, by file name."""
    answers = recorded_answers()
    texts = {"lines.txt": "".join(f"{answer.line(number)}\n" for number, answer in enumerate(answers))}
    texts["bodies.txt"] = "\n".join(_kept_texts(answers))
    return texts


def _kept_texts(answers: list[Answer]) -> Iterator[str]:
    return (answer.text(number) for number, answer in list(enumerate(answers))[::_KEPT])


def write_answers() -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    for name, text in frozen_answers().items():
        (GOLDENS / name).write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", type=int, metavar="N", help="print the request and the answer of line N")
    number = parser.parse_args().show
    if number is None:
        write_answers()
    else:
        shown = recorded_answers()[number]
        print(json.dumps(shown.request, indent=1), shown.text(number), sep="\n")
