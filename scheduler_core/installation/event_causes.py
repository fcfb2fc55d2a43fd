"""What the text of a FailedScheduling event says about the way from kube-scheduler to the extender; docs/operations.md
has the same causes for people.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from scheduler_core.model.installation import EXTENDER_RESOURCE
from scheduler_core.model.verdict import Reason


@dataclass(frozen=True, slots=True)
class EventCause:
    """A cause that an event's text reveals."""

    pattern: str  # a regular expression that is found in the text
    what: str  # the cause, for an administrator
    command: str  # what mends it; ``{kubectl}`` is kubectl in the extender's namespace


# kube-scheduler's HTTP client begins a failure with this.
_CALL: Final = r'Post "[^"]*/(?:filter|prioritize|preempt|bind)": .*'
_DOWN: Final = "{kubectl} get pods,lease,endpointslice"
UNMANAGED_RESOURCE: Final = EventCause(
    rf"Insufficient {re.escape(EXTENDER_RESOURCE)}",
    "kube-scheduler looks for longhorn.io/scheduler-extender on nodes: no extender manages it",
    "add managedResources with ignoredByScheduler: true to its configuration, and restart it",
)
# The first that matches counts.
CAUSES: Final = (
    UNMANAGED_RESOURCE,
    EventCause(_CALL + "connection refused", "no process listens at the address that kube-scheduler calls", _DOWN),
    EventCause(
        _CALL + "no such host",
        "kube-scheduler cannot resolve the Service's name: it uses the host's DNS",
        "write the Service's clusterIP into urlPrefix: longhorn-extender scheduler-config",
    ),
    EventCause(
        _CALL + r"(?:proxyconnect|Proxy)|with extender at URL .*, code 407",
        "kube-scheduler sends the call through a proxy",
        "add the address in urlPrefix to NO_PROXY of kube-scheduler",
    ),
    EventCause(
        _CALL + r"(?:server gave HTTP response to HTTPS client|malformed HTTP response|certificate|tls: )",
        "kube-scheduler and the extender do not agree about TLS",
        "compare urlPrefix and tlsConfig in kube-scheduler's configuration",
    ),
    EventCause(
        _CALL + r"(?:context deadline exceeded|i/o timeout|Client\.Timeout exceeded|no route to host)",
        "no answer in time: a firewall or NetworkPolicy, a missing kube-proxy, or a leader that died",
        "curl the address in urlPrefix from a control-plane node",
    ),
    EventCause(
        r"with extender at URL .*, code 413",
        "the request is larger than the extender accepts",
        "nodeCacheCapable: true in kube-scheduler's configuration",
    ),
    EventCause(
        r"with extender at URL .*, code 503",
        "the extender has no memory left for the request: other callers hold it",
        "restrict access: docs/installation.md",
    ),
    EventCause(
        r"with extender at URL .*, code \d+",
        "the address that kube-scheduler calls answers, but not as the extender does",
        "compare urlPrefix with the Service: {kubectl} get service",
    ),
    EventCause(_CALL, "kube-scheduler's call failed", _DOWN),
    EventCause("not the leader, ", "kube-scheduler reached a process that does not lead", _DOWN),
    EventCause(
        "scheduler-extender-enabled is false",
        "the extender is switched off",
        "{kubectl} edit configmap longhorn-scheduler-extender",
    ),
    EventCause(
        r"not ready: |taking over from the last leader",
        "the extender did not know the cluster",
        "{kubectl} logs -l app.kubernetes.io/name=longhorn-scheduler-extender --prefix --tail=20",
    ),
)
_REFUSALS: Final = tuple(reason.text for reason in Reason if not reason.fits)


def is_refusal(message: str) -> bool:
    """Whether the extender has refused nodes for one of its reasons."""
    return any(text in message for text in _REFUSALS)


def cause_of(message: str) -> EventCause | None:
    """The cause that an event's text reveals."""
    # None for a refusal of the extender, and for what kube-scheduler's own plugins say.
    if is_refusal(message):
        return None
    return next((cause for cause in CAUSES if re.search(cause.pattern, message, re.DOTALL)), None)
