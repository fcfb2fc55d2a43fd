"""`reservation: node` over two nodes: tests play kube-scheduler and Longhorn by hand, in virtual time."""

import asyncio

from app.evaluator import Evaluator
from app.extender.metrics import Metrics
from app.extender.verbs import Verbs
from app.extender.whole_node_reservation import NodeReservations
from app.policy import PolicyInForce
from app.runtime.probes import Availability, HungUp
from scheduler_core.decide.decision import Decision, FilterOptions
from scheduler_core.decide.explain import Explanation
from scheduler_core.decide.extender_settings import ExtenderSettings
from scheduler_core.model.kube import Pod
from tests import builders as make
from tests.worlds.state_source import FakeStateSource, caller_waits, fitting_nodes
from tests.worlds.two_nodes import NODES, database_pod, two_nodes
from tests.worlds.virtual_time import virtual_loop

POD_SCHEDULING_TIMEOUT = 5
NODE_RESERVATION_TIMEOUT = 7


class NodeReservationWorld:
    """Two nodes of 100 Gi under node reservations."""

    def __init__(
        self,
        *,
        scheduling_timeout: int = POD_SCHEDULING_TIMEOUT,
        reservation_timeout: int = NODE_RESERVATION_TIMEOUT,
        options: FilterOptions | None = None,
    ) -> None:
        settings = ExtenderSettings(
            enabled=True, pod_scheduling_timeout=scheduling_timeout, node_reservation_timeout=reservation_timeout
        )
        self.cache = FakeStateSource(two_nodes())
        self.metrics = Metrics()
        self.refusal = ""  # why this process must not answer, "" if it may
        self.loop = virtual_loop()
        self._evaluator = Evaluator(self.cache, options or FilterOptions())
        self.reservations = NodeReservations(
            self.cache, self._evaluator, lambda: settings, self.metrics, self.loop.time
        )
        self.verbs = self.verbs_with(lambda: self.refusal)

    def verbs_with(self, availability: Availability, late_availability: Availability | None = None) -> Verbs:
        """The verbs over these reservations; see `Verbs` for both arguments."""
        return Verbs(self._evaluator, PolicyInForce(), availability, self.reservations, late_availability)

    def create(self, *numbers: int) -> None:
        """Creates pods with their unbound claims of 10 Gi."""
        for number in numbers:
            self.cache.put(make.claim(f"data-{number}", 10), database_pod(number))

    def bind(self, number: int, node: str) -> None:
        self.cache.put(database_pod(number, node))

    def provision(self, number: int, node: str) -> None:
        """Places the replica of a pod's volume, as Longhorn does; the node does not list it yet."""
        self.cache.put(
            *make.bound(f"data-{number}", 10), make.replica(f"r-{number}", f"vol-data-{number}", node, size=10)
        )

    def list_replicas(self, node: str, *numbers: int) -> None:
        """Lists the replicas of these pods' volumes in the status of Longhorn's node."""
        listed = make.disk(100, listed={f"r-{number}": 10 for number in numbers})
        self.cache.put(make.longhorn_node(node, {"disk-1": listed}))

    async def decide(self, pod: Pod, hung_up: HungUp = caller_waits) -> Decision:
        """Sends /filter for a pod and both nodes."""
        return (await self.verbs.filter(pod, NODES, hung_up)).decision

    async def filter(self, number: int, hung_up: HungUp = caller_waits) -> list[str]:
        """Sends /filter for the pod of this number; returns the nodes that fit."""
        return fitting_nodes(await self.decide(make.as_pod(database_pod(number)), hung_up))

    async def explain(self, number: int) -> Explanation:
        return await self.verbs.explain(make.as_pod(database_pod(number)), NODES)

    async def preempt(self, number: int) -> Decision:
        return await self.verbs.preempt(make.as_pod(database_pod(number)), NODES)

    def observations(self, histogram: str, **label: str) -> float:
        return self.metrics.registry.get_sample_value(f"{histogram}_count", label) or 0.0

    def total(self, histogram: str, **label: str) -> float:
        return self.metrics.registry.get_sample_value(f"{histogram}_sum", label) or 0.0

    async def assert_idle(self) -> None:
        """Asserts a free lock, no reserved node, and no task or listener."""
        async with asyncio.timeout(1):
            await self.reservations.settle()
        await asyncio.sleep(0)
        assert self.reservations.reserved_nodes() == frozenset()
        assert self.cache.listeners == {}
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
