"""The pods of a burst until they no longer change: running, bound to a node, or without one."""

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.e2e.objects import Object
from tests.e2e.rig import Rig

_SETTLED_SECONDS: Final = 10.0
# After the moment at which Longhorn tries a replica again.
_RETRY_SECONDS: Final = 5.0
_MAX_SECONDS: Final = 180.0
_POLL: Final = 0.2


class PodState(StrEnum):
    """How far a pod has come."""

    RUNNING = "running"
    BOUND = "bound"
    WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Settled:
    """The last states of an app's pods."""

    states: dict[str, PodState]  # the state of each pod by its name
    seconds: float  # when the last pod changed, from the beginning

    def count(self, state: PodState) -> int:
        return sum(each is state for each in self.states.values())

    @property
    def bound(self) -> set[str]:
        return {name for name, state in self.states.items() if state is not PodState.WAITING}

    @property
    def seconds_until_ready(self) -> float | None:
        """When the last pod came to run, None if not every pod does."""
        return self.seconds if self.count(PodState.RUNNING) == len(self.states) else None


def wait_until_quiet(rig: Rig, app: str, started: float) -> Settled:
    """Waits until the pods of an app no longer change.

    A machine that is busy may bind no pod for a while. So the quiet begins with the first pod that has a node, and only once
    kube-scheduler has decided about each.

    Args:
        rig: where the app runs
        app: the app
        started: when its pods were created, in monotonic seconds
    """
    states: dict[str, PodState] = {}
    changed = started
    retried = rig.replica_retry + _RETRY_SECONDS
    while (now := time.monotonic()) - started < _MAX_SECONDS:
        pods = rig.pods(app)
        current = {pod["metadata"]["name"]: _state(pod) for pod in pods}
        if current != states or not all(map(is_decided, pods)) or set(current.values()) == {PodState.WAITING}:
            states = current
            changed = now
        if set(states.values()) == {PodState.RUNNING}:
            break
        # A pod whose replica waits for space may still come to run.
        quiet = retried if PodState.BOUND in states.values() else _SETTLED_SECONDS
        if now - changed > quiet:
            break
        time.sleep(_POLL)
    settled = Settled(states, changed - started)
    assert settled.bound, f"invalid run: no pod of {app} got a node within {_MAX_SECONDS:g} s"
    return settled


def is_decided(pod: Object) -> bool:
    """Whether kube-scheduler has found a node for a pod, or has refused it."""
    conditions = pod["status"].get("conditions") or ()
    return bool(pod["spec"].get("nodeName")) or any(entry["type"] == "PodScheduled" for entry in conditions)


def _state(pod: Object) -> PodState:
    if pod["status"].get("phase") == "Running":
        return PodState.RUNNING
    return PodState.BOUND if pod["spec"].get("nodeName") else PodState.WAITING
