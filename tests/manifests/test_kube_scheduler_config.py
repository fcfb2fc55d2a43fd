"""The configurations of kube-scheduler: the proposal's, word for word, and the recommended ones."""

from typing import Any

import pytest
import yaml

from app.extender.offers import MAX_WAIT
from tests.manifests.load import CONFIGS, NAME, documents, only, with_scores

RESOURCE = [{"name": "longhorn.io/scheduler-extender", "ignoredByScheduler": True}]
RECOMMENDED = ["recommended.yaml", "recommended-managed.yaml", "recommended-managed-tls.yaml"]
PROPOSAL = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection:
  kubeconfig: /etc/kubernetes/scheduler.conf  # Path may vary depending on the cluster setup
leaderElection:
  leaderElect: true
extenders:
  - urlPrefix: "http://longhorn-scheduler-extender.longhorn-system.svc:9504"
    filterVerb: "filter"
    enableHTTPS: false
    nodeCacheCapable: false
    ignorable: false   # Note: this prevents scheduling of pods that request the longhorn.io/scheduler-extender resource if the extender is down or unreachable. Set to true if this is not acceptable.
    httpTimeout: 10s
    managedResources:
      - name: "longhorn.io/scheduler-extender"
        ignoredByScheduler: true
"""


def configuration(name: str) -> dict[str, Any]:
    (document,) = documents(CONFIGS / name)
    assert isinstance(document, dict)
    return document


def test_the_proposals_configuration_is_unchanged() -> None:
    lines = (CONFIGS / "proposal.yaml").read_text().splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("#")) == PROPOSAL
    assert configuration("proposal.yaml") == yaml.safe_load(PROPOSAL)


@pytest.mark.parametrize("name", RECOMMENDED)
def test_the_recommended_configurations_see_all_nodes_and_keep_scoring_intact(name: str) -> None:
    config = configuration(name)
    extender = called(name)
    assert config["percentageOfNodesToScore"] == 100
    assert extender["nodeCacheCapable"] is True
    assert extender["ignorable"] is False
    assert (extender["filterVerb"], extender["preemptVerb"]) == ("filter", "preempt")
    assert "prioritizeVerb" not in extender


@pytest.mark.parametrize("name", RECOMMENDED)
def test_the_two_commented_lines_enable_scores_and_change_nothing_else(name: str) -> None:
    """kube-scheduler refuses the verb without a weight."""
    scored = yaml.safe_load(with_scores(CONFIGS / name))
    (extender,) = [entry for entry in scored["extenders"] if "filterVerb" in entry]
    assert (extender.pop("prioritizeVerb"), extender.pop("weight")) == ("prioritize", 1)
    assert scored == configuration(name)


def called(name: str) -> dict[str, Any]:
    (extender,) = [entry for entry in configuration(name)["extenders"] if "filterVerb" in entry]
    return dict(extender)


def test_the_recommended_configurations_differ_only_in_the_pods_they_send() -> None:
    every = configuration("recommended.yaml")
    managed = configuration("recommended-managed.yaml")
    assert managed["extenders"][0].pop("managedResources") == RESOURCE
    assert every["extenders"][:1] == managed["extenders"]
    assert {**every, "extenders": []} == {**managed, "extenders": []}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_pods_that_request_the_resource_are_schedulable_with_every_configuration(path: Any) -> None:
    """Exactly one entry manages the resource, and keeps kube-scheduler from looking for it on nodes."""
    managed = [
        entry["managedResources"] for entry in configuration(path.name)["extenders"] if "managedResources" in entry
    ]
    assert managed == [RESOURCE]


def test_with_recommended_the_entry_that_manages_the_resource_is_never_called() -> None:
    """It has no verb, so a pod with the resource is asked about once, like every other pod."""
    (extra,) = [entry for entry in configuration("recommended.yaml")["extenders"] if "filterVerb" not in entry]
    assert extra.keys() == {"urlPrefix", "nodeCacheCapable", "managedResources"}
    assert called("recommended.yaml").keys().isdisjoint({"managedResources"})


def test_the_file_for_tls_differs_in_tls_only() -> None:
    """With https in urlPrefix and an authority in tlsConfig: otherwise nothing is encrypted, or nothing is verified."""
    config = configuration("recommended-managed-tls.yaml")
    (extender,) = config["extenders"]
    tls = extender.pop("tlsConfig")
    assert extender.pop("enableHTTPS") is True
    plain = configuration("recommended-managed.yaml")
    assert plain["extenders"][0].pop("enableHTTPS") is False
    extender["urlPrefix"] = extender["urlPrefix"].replace("https://", "http://")
    assert config == plain
    assert tls.keys() == {"serverName", "caFile", "certFile", "keyFile"}
    assert tls["serverName"] == f"{NAME}.longhorn-system.svc"


def http_timeout(name: str) -> int:
    extender = called(name)
    return int(extender["httpTimeout"].removesuffix("s"))


@pytest.mark.parametrize("name", RECOMMENDED)
def test_a_frozen_leader_stops_kube_scheduler_for_three_seconds_at_a_time(name: str) -> None:
    """kube-scheduler decides about one pod at a time; a request that waits is answered much earlier."""
    assert http_timeout(name) == 3
    assert http_timeout(name) > MAX_WAIT + 1


def test_with_the_proposals_configuration_kube_scheduler_waits_longer_than_a_reserved_answer() -> None:
    """With `--reservation node` an answer takes the pod-scheduling time-out and less than a second more."""
    timeout = int(only("ConfigMap", name=NAME)["data"]["scheduler-extender-pod-scheduling-timeout"])
    assert http_timeout("proposal.yaml") > timeout + 1


def test_the_client_limits_are_kube_schedulers_defaults() -> None:
    """They are in the file, so that an administrator sees what to raise."""
    connection = configuration("recommended.yaml")["clientConnection"]
    assert (connection["qps"], connection["burst"]) == (50, 100)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_configuration_leads_to_the_service(path: Any) -> None:
    service = only("Service", name=NAME)
    (port,) = service["spec"]["ports"]
    scheme = "https" if called(path.name)["enableHTTPS"] else "http"
    assert {entry["urlPrefix"] for entry in configuration(path.name)["extenders"]} == {
        f"{scheme}://{service['metadata']['name']}.longhorn-system.svc:{port['port']}"
    }
