"""The Helm chart: its objects, its values, and what they change. The objects are those of the kustomizations."""

import json
import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from app.extender.certificates import CertificateFiles
from app.extender.metrics import Metrics
from app.settings import TlsFiles
from devcluster import chart
from devcluster.chart import CHART
from scheduler_core.installation.kube_scheduler_config import Platform, Registration, configuration
from tests.manifests.helm import RELEASE, Helm, write_secret
from tests.manifests.kustomize import build, build_own
from tests.manifests.load import (
    GUARD,
    NAME,
    NAMESPACE,
    Built,
    Permission,
    assert_restricted,
    by_name,
    documents,
    permissions,
    pod_spec,
    yaml_blocks,
)
from tests.worlds.tls import client_context, shake_hands_in_memory

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
# What helm adds to the manifests' labels.
CHART_LABELS = frozenset(
    {"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/version", "helm.sh/chart"}
)
CONFIG = "longhorn-scheduler-config"
STABLE = "admissionregistration.k8s.io/v1"
BETA = "admissionregistration.k8s.io/v1beta1"
POLICY = "MutatingAdmissionPolicy"
# Where the extender's pods may run, as administrators write it.
ZONES = {"topologyKey": "topology.kubernetes.io/zone", "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
ON_SSD: dict[str, Any] = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": []}]}
}
SCRATCH = {"name": "scratch", "emptyDir": {}}
TLS = {"enabled": True, "secretName": f"{NAME}-tls"}
NETWORK = "192.168.10.0/24"
# kustomize does not know that these have no namespace; the API server ignores it.
CLUSTER_WIDE = re.compile(r"\w*(Admission|Cluster|Webhook)\w*")


@pytest.fixture
def helm(tmp_path: Path) -> Helm:
    """The program, without a cluster."""
    return Helm(tmp_path)


def test_the_templates_are_what_the_manifests_make() -> None:
    """After a change: `python -m devcluster.chart`."""
    made = dict(chart.files())
    assert {path: path.read_text() for path in made} == made


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("kind: Role\nmetadata:\n  name: a\n  value: '{{ $labels }}'\n", "braces"),
        ("kind: Role\nmetadata:\n  labels: {}\n  name: a\n", "do not begin with its name"),
    ],
)
def test_a_manifest_that_cannot_become_a_template_is_named(text: str, problem: str) -> None:
    """Otherwise an object without labels, or an empty text, is installed."""
    with pytest.raises(ValueError, match=f"manifests/a.yaml: .*{problem}"):
        chart.template(text, chart.PARTS[0], "manifests/a.yaml")


def test_the_chart_passes_the_strict_lint(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


def normalize(objects: Built) -> Built:
    """Objects without what only one side has. These are the labels that helm adds, and a namespace where there is none. A changed
    configuration of the second kube-scheduler is a new name in a kustomization, and an annotation of the pods in the chart.
    """
    for (kind, name), entry in list(objects.items()):
        metadata = entry["metadata"]
        if not name.startswith(NAME):
            metadata["labels"] = {}
        if name.startswith(CONFIG):
            metadata["name"] = CONFIG
            objects[kind, CONFIG] = objects.pop((kind, name))
        if (kind, name) == ("Deployment", chart.SECOND_SCHEDULER):
            template = entry["spec"]["template"]
            template["metadata"].pop("annotations", None)
            for volume in template["spec"]["volumes"]:
                if volume["name"] == "config":
                    volume["configMap"] = {"name": CONFIG}
        metadata["labels"] = {key: value for key, value in metadata["labels"].items() if key not in CHART_LABELS}
        if CLUSTER_WIDE.fullmatch(kind):
            metadata.pop("namespace", None)
    return objects


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("folders", "values"),
    [
        pytest.param(["base"], {}, id="defaults"),
        pytest.param(["base", "overlays/ask-policy"], {"askPolicy": {"enabled": True}}, id="ask policy"),
        pytest.param(
            ["base", "overlays/ask-policy-v1beta1"],
            {"askPolicy": {"enabled": True}},
            id="ask policy before Kubernetes 1.36",
        ),
        pytest.param(
            ["overlays/second-scheduler", "overlays/scheduler-name-policy"],
            {
                "secondScheduler": {"enabled": True, "image": {"tag": "v1.36.3"}},
                "schedulerNamePolicy": {"enabled": True},
            },
            id="second kube-scheduler",
        ),
        pytest.param(["base", "monitoring"], {"monitoring": {"enabled": True}}, id="monitoring"),
        pytest.param(["overlays/tls"], {"tls": TLS}, id="TLS"),
        pytest.param(
            ["overlays/tls-cert-manager"],
            {"tls": {"enabled": True, "certManager": {"enabled": True}}},
            id="TLS by cert-manager",
        ),
    ],
)
def test_chart_and_kustomization_are_the_same_objects(
    helm: Helm, folders: Sequence[str], values: Mapping[str, Any]
) -> None:
    version = "v1.35.4" if "overlays/ask-policy-v1beta1" in folders else "v1.36.3"
    assert normalize(helm.render(values, "--kube-version", version)) == normalize(by_name(build(*folders)))


@pytest.mark.parametrize("policy", ["askPolicy", "schedulerNamePolicy"])
@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        pytest.param(["v1/Pod", f"{BETA}/{POLICY}"], BETA, id="beta"),
        pytest.param(["v1/Pod", f"{BETA}/{POLICY}", f"{STABLE}/{POLICY}"], STABLE, id="both"),
    ],
)
def test_a_policy_has_the_version_that_the_cluster_has(
    helm: Helm, policy: str, versions: Sequence[str], expected: str
) -> None:
    values = {policy: {"enabled": True}, "secondScheduler": {"enabled": True}}
    options = [f"--api-versions={version}" for version in versions]
    objects = helm.render(values, *options, "--kube-version", "v1.35.4")
    policies = [entry["apiVersion"] for (kind, _), entry in objects.items() if kind.startswith(POLICY)]
    assert policies == [expected] * 2


@pytest.mark.e2e
def test_the_network_policy_is_the_overlays_with_the_networks_that_are_given(helm: Helm) -> None:
    network_policy = {"enabled": True, "controlPlaneNetworks": [NETWORK]}
    expected = by_name(build("base", "overlays/network-policy"))
    ingress = expected["NetworkPolicy", NAME]["spec"]["ingress"]
    ingress[0]["from"][0]["ipBlock"]["cidr"] = NETWORK
    assert normalize(helm.render({"networkPolicy": network_policy})) == normalize(expected)
    other = {**network_policy, "controlPlaneNetworks": [NETWORK, "fd00::/64"], "prometheusNamespace": "metrics"}
    rules = helm.render({"networkPolicy": other})["NetworkPolicy", NAME]["spec"]["ingress"]
    assert [peer["ipBlock"]["cidr"] for peer in rules[0]["from"]] == [NETWORK, "fd00::/64"]
    assert rules[2]["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "metrics"}


@pytest.mark.e2e
def test_a_second_kube_scheduler_calls_by_tls_as_documented(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.render({"tls": TLS, "secondScheduler": {"enabled": True, "image": {"tag": "v1.36.3"}}})
    (patch,) = [
        block["patches"][0]
        for block in map(yaml.safe_load, yaml_blocks("docs/tls.md"))
        if "configMapGenerator" in block
    ]
    overlay = {"resources": ["../manifests/overlays/second-scheduler"], "components": ["../manifests/tls"]}
    expected = by_name(build_own(tmp_path, yaml.safe_dump({**overlay, "patches": [patch]})))
    deployment = ("Deployment", chart.SECOND_SCHEDULER)
    assert pod_spec(normalize(rendered), chart.SECOND_SCHEDULER) == pod_spec(
        normalize(expected), chart.SECOND_SCHEDULER
    )
    assert rendered[deployment]["metadata"]["name"] == chart.SECOND_SCHEDULER
    url = f"https://{NAME}.{NAMESPACE}.svc:9504"
    printed = configuration(Registration(Platform.SECOND_SCHEDULER, url, ""))
    assert yaml.safe_load(rendered["ConfigMap", CONFIG]["data"]["kube-scheduler.yaml"]) == printed


def test_prometheus_scrapes_by_tls_as_documented(helm: Helm) -> None:
    rendered = helm.render({"tls": TLS, "monitoring": {"enabled": True}})
    (endpoint,) = rendered["PodMonitor", NAME]["spec"]["podMetricsEndpoints"]
    (patch,) = [
        block["patches"][0] for block in map(yaml.safe_load, yaml_blocks("docs/tls.md")) if block.keys() == {"patches"}
    ]
    for operation in yaml.safe_load(patch["patch"]):
        assert endpoint[operation["path"].rpartition("/")[2]] == operation["value"]


def test_the_chart_makes_certificates_that_both_ends_accept(helm: Helm, tmp_path: Path) -> None:
    secrets = {
        name: entry for (kind, name), entry in helm.render({"tls": {"enabled": True}}).items() if kind == "Secret"
    }
    del secrets[GUARD]
    assert set(secrets) == {f"{NAME}-{suffix}" for suffix in ("ca", "tls", "client")}
    server, caller = (write_secret(tmp_path, secrets[f"{NAME}-{suffix}"]) for suffix in ("tls", "client"))
    files = TlsFiles(str(server / "tls.crt"), str(server / "tls.key"), str(server / "ca.crt"))
    context = client_context((caller / "ca.crt").read_bytes())
    with pytest.raises(ssl.SSLError):
        shake_hands_in_memory(server_context(files), context, f"{NAME}.{NAMESPACE}.svc")
    context.load_cert_chain(caller / "tls.crt", caller / "tls.key")
    assert shake_hands_in_memory(server_context(files), context, f"{NAME}.{NAMESPACE}.svc") == "TLSv1.3"
    certificate = x509.load_pem_x509_certificate((server / "tls.crt").read_bytes())
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)


def server_context(files: TlsFiles) -> ssl.SSLContext:
    return CertificateFiles(files, Metrics(), lambda: datetime.now(UTC)).context


@pytest.mark.parametrize("tls", [TLS, {"enabled": True, "certManager": {"enabled": True}}, {"enabled": False}])
def test_the_chart_makes_no_certificates_that_another_makes(helm: Helm, tls: Mapping[str, Any]) -> None:
    assert [name for kind, name in helm.render({"tls": tls}) if kind == "Secret"] == [GUARD]


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        pytest.param({}, {"scheduler-config", "askPolicy"}, id="without TLS"),
        pytest.param(
            {"tls": {"enabled": True}},
            {"scheduler-config", "askPolicy", "--tls --platform", "To renew them"},
            id="certificates of the chart",
        ),
        pytest.param(
            {"tls": TLS},
            {"scheduler-config", "askPolicy", "--tls --platform", f"which you make like {NAME}-tls"},
            id="a Secret that exists",
        ),
        pytest.param({"tls": {"enabled": True}, "secondScheduler": {"enabled": True}}, {"To renew them"}, id="second"),
    ],
)
def test_the_notes_name_the_steps_to_take(helm: Helm, values: Mapping[str, Any], steps: set[str]) -> None:
    notes = helm.run("install", RELEASE, str(CHART), "--dry-run=client", values=values).partition("NOTES:")[2]
    every_step = {
        "--tls --platform",
        "To renew them",
        f"which you make like {NAME}-tls",
        "scheduler-config",
        "askPolicy",
    }
    assert {step for step in every_step if step in notes} == steps
    assert "longhorn-extender doctor" in notes


def test_every_object_has_the_labels_of_the_chart(helm: Helm) -> None:
    """By these an administrator finds what a release has installed."""
    parts = ("askPolicy", "monitoring", "secondScheduler", "schedulerNamePolicy", "tls")
    values: dict[str, Any] = {name: {"enabled": True} for name in parts}
    values["networkPolicy"] = {"enabled": True, "controlPlaneNetworks": [NETWORK]}
    for entry in helm.render(values).values():
        labels = entry["metadata"]["labels"]
        assert labels.keys() >= CHART_LABELS
        assert labels["app.kubernetes.io/name"] in {NAME, chart.SECOND_SCHEDULER}
        assert labels["app.kubernetes.io/instance"] == RELEASE


def container_of(objects: Built) -> dict[str, Any]:
    (container,) = pod_spec(objects)["containers"]
    return dict(container)


@pytest.mark.parametrize(
    ("values", "path", "expected"),
    [
        ({"replicas": 3}, "Deployment spec replicas", 3),
        ({"podAnnotations": {"a": "b"}}, "Pod metadata annotations", {"a": "b"}),
        ({"podLabels": {"a": "b"}}, "Pod metadata labels", {"app.kubernetes.io/name": NAME, "a": "b"}),
        ({"nodeSelector": {"a": "b"}}, "Pod spec nodeSelector", {"kubernetes.io/os": "linux", "a": "b"}),
        ({"tolerations": []}, "Pod spec tolerations", None),
        ({"priorityClassName": ""}, "Pod spec priorityClassName", None),
        ({"imagePullSecrets": [{"name": "a"}]}, "Pod spec imagePullSecrets", [{"name": "a"}]),
        ({"affinity": {"podAntiAffinity": None, "nodeAffinity": ON_SSD}}, "Pod spec affinity", {"nodeAffinity": ON_SSD}),
        ({"affinity": {"nodeAffinity": ON_SSD}}, "Pod spec affinity", {**VALUES["affinity"], "nodeAffinity": ON_SSD}),
        ({"topologySpreadConstraints": [ZONES]}, "Pod spec topologySpreadConstraints", [ZONES]),
        ({"topologySpreadConstraints": []}, "Pod spec topologySpreadConstraints", None),
        ({"extraVolumes": [SCRATCH]}, "Pod spec volumes", [SCRATCH]),
        ({"tls": {"enabled": True, "secretName": "mine"}}, "Pod spec volumes 0 secret secretName", "mine"),
        ({"image": {"repository": "r.example.com/a", "tag": "1.10"}}, "Pod spec containers 0 image",
         "r.example.com/a:1.10"),
        # Rancher's registry is put in front of the image.
        ({"global": {"cattle": {"systemDefaultRegistry": "r.example.com"}}}, "Pod spec containers 0 image",
         f"r.example.com/{NAME}:0.1.0"),
        ({"extraArgs": ["--log-level", "debug"]}, "Pod spec containers 0 args",
         ["serve", "--host", "::", "--port", "9504", "--log-level", "debug"]),
        ({"resources": {"limits": {"memory": "2Gi"}}}, "Pod spec containers 0 resources",
         {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}),
        ({}, "ServiceAccount metadata annotations", None),
        ({"serviceAccount": {"annotations": {"a": "b"}}}, "ServiceAccount metadata annotations", {"a": "b"}),
        ({}, "Service spec clusterIP", None),
        ({"service": {"clusterIP": "10.43.0.9"}}, "Service spec clusterIP", "10.43.0.9"),
    ],
)  # fmt: skip
def test_a_value_reaches_its_object(helm: Helm, values: Mapping[str, Any], path: str, expected: object) -> None:
    objects = helm.render(values)
    kind, *parents, key = path.split()
    entry: Any = objects["Deployment", NAME]["spec"]["template"] if kind == "Pod" else objects[kind, NAME]
    for parent in parents:
        entry = entry[int(parent) if parent.isdigit() else parent]
    assert entry.get(key) == expected


def test_extra_volumes_and_variables_are_there_as_well(helm: Helm) -> None:
    mount = {"name": "scratch", "mountPath": "/scratch"}
    variable = {"name": "SSL_CERT_FILE", "value": "/scratch/ca.crt"}
    objects = helm.render({"tls": TLS, "extraVolumes": [SCRATCH], "extraVolumeMounts": [mount], "extraEnv": [variable]})
    assert [volume["name"] for volume in pod_spec(objects)["volumes"]] == ["tls", "scratch"]
    container = container_of(objects)
    assert [entry["mountPath"] for entry in container["volumeMounts"]] == [f"/etc/{NAME}-tls", "/scratch"]
    assert container["env"] == [*container_of(helm.render())["env"], variable]


def test_alerts_lead_to_the_copy_of_the_runbook_that_is_given(helm: Helm) -> None:
    monitoring = {"enabled": True, "repositoryURL": "https://git.example.com/a/"}
    (group,) = helm.render({"monitoring": monitoring})["PrometheusRule", NAME]["spec"]["groups"]
    links = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in group["rules"]}
    assert links == {alert: f"https://git.example.com/a/docs/runbook.md#{alert.lower()}" for alert in links}


def test_the_second_kube_scheduler_has_the_clusters_version(helm: Helm) -> None:
    """Without the provider's suffix, which no image has. A change of its configuration restarts it."""
    values = {"secondScheduler": {"enabled": True}}
    objects = helm.render(values, "--kube-version", "v1.34.5-eks-1a2b3c")
    template = objects["Deployment", chart.SECOND_SCHEDULER]["spec"]["template"]
    assert template["spec"]["containers"][0]["image"] == "registry.k8s.io/kube-scheduler:v1.34.5"
    assert len(template["metadata"]["annotations"]["checksum/config"]) == 64


def test_the_second_kube_scheduler_calls_the_extender_where_it_is_installed(helm: Helm) -> None:
    """Longhorn may be in another namespace."""
    values = {"secondScheduler": {"enabled": True}, "longhornNamespace": "storage"}
    config = helm.render(values, "--namespace", "storage")["ConfigMap", f"storage/{CONFIG}"]["data"][
        "kube-scheduler.yaml"
    ]
    assert "longhorn-system" not in config
    assert f"http://{NAME}.storage.svc:9504" in config


def test_a_setting_changes_nothing_but_the_config_map(helm: Helm) -> None:
    """So that an upgrade restarts no pod."""
    before = helm.render()
    after = helm.render(
        {
            "settings": {
                "enabled": False, "enforcement": "observe", "podSchedulingTimeout": 0, "placementGuard": "observe",
                "placementGuardOtherNodes": True,
            }
        }
    )  # fmt: skip
    assert {key for key in before if before[key] != after[key]} == {("ConfigMap", NAME)}
    assert after["ConfigMap", NAME]["data"] == {
        "scheduler-extender-enabled": "false",
        "scheduler-extender-enforcement": "observe",
        "scheduler-extender-pod-scheduling-timeout": "0",
        "scheduler-extender-node-reservation-timeout": "5",
        "placement-guard": "observe",
        "placement-guard-other-nodes": "true",
    }


@pytest.mark.parametrize(
    ("values", "where"),
    [
        pytest.param({"settings": {"enforcement": "maybe"}}, "/settings/enforcement", id="unknown word"),
        pytest.param({"settings": {"enforcment": "observe"}}, "enforcment", id="misspelt"),
        pytest.param({"setings": {}}, "setings", id="misspelt section"),
        pytest.param({"settings": {"podSchedulingTimeout": 3601}}, "/settings/podSchedulingTimeout", id="too long"),
        pytest.param({"settings": {"enabled": "yes"}}, "/settings/enabled", id="no boolean"),
        pytest.param({"replicas": 0}, "/replicas", id="no pods"),
        pytest.param({"image": {"tag": 1.1}}, "/image/tag", id="tag without quotes"),
        pytest.param({"image": {"repository": ""}}, "/image/repository", id="no image"),
        pytest.param({"settings": {"placementGuard": False}}, "/settings/placementGuard", id="off without quotes"),
        pytest.param({"image": {"tag": ""}}, "/image/tag", id="empty tag"),
        pytest.param({"image": {"tag": None}}, "tag", id="no tag"),
        pytest.param(
            {"podLabels": {"app.kubernetes.io/name": "a"}}, "'app.kubernetes.io/name'", id="the label of the pods"
        ),
        pytest.param({"affinity": {"nodeAfinity": {}}}, "nodeAfinity", id="misspelt affinity"),
        pytest.param({"extraEnv": [{"value": "a"}]}, "/extraEnv/0", id="a variable without a name"),
        pytest.param({"monitoring": {"repositoryURL": "git.example.com"}}, "/monitoring/repositoryURL", id="no URL"),
        pytest.param({"service": {"clusterIP": "none of these"}}, "/service/clusterIP", id="no address"),
        pytest.param({"networkPolicy": {"enabled": True}}, "/networkPolicy/controlPlaneNetworks", id="no network"),
        pytest.param(
            {"networkPolicy": {"controlPlaneNetworks": ["10.0.0.1"]}},
            "/networkPolicy/controlPlaneNetworks/0",
            id="address",
        ),
        pytest.param({"tls": {"secretName": "A_B"}}, "/tls/secretName", id="no name of a Secret"),
        pytest.param({"tolerations": [{"key": "a", "effect": "Never"}]}, "/tolerations/0/effect", id="effect"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(helm: Helm, values: Mapping[str, Any], where: str) -> None:
    refusal = helm.refusal(values)
    assert "don't meet the specifications of the schema" in refusal
    assert where in refusal


@pytest.mark.parametrize(
    ("values", "options", "line"),
    [
        # The extender would look for Longhorn there.
        pytest.param(
            {"longhornNamespace": "storage"},
            [],
            "install the chart in Longhorn's namespace: add --namespace storage",
            id="another namespace than Longhorn's",
        ),
        # Every new pod with a claim would wait for it.
        pytest.param(
            {"schedulerNamePolicy": {"enabled": True}},
            [],
            "set secondScheduler.enabled=true, too",
            id="the name of a second kube-scheduler that does not run",
        ),
        pytest.param(
            {"tls": {**TLS, "certManager": {"enabled": True}}},
            [],
            "tls.secretName names a Secret of yours, and tls.certManager.enabled makes another one",
            id="a Secret that is given and cert-manager",
        ),
        pytest.param(
            {"askPolicy": {"enabled": True}},
            ["--api-versions=v1/Pod"],
            "the cluster has no MutatingAdmissionPolicy: it needs Kubernetes 1.36",
            id="a cluster without such policies",
        ),
    ],
)
def test_values_that_contradict_each_other_or_the_cluster_are_refused(
    helm: Helm, values: Mapping[str, Any], options: Sequence[str], line: str
) -> None:
    assert line in helm.refusal(values, *options)


def leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields each value with its path."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def test_rancher_asks_for_values_of_the_chart_with_their_defaults() -> None:
    """A misspelt question would set a value that the schema refuses."""
    (form,) = documents(CHART / "questions.yaml")
    questions = [*form["questions"], *(entry for each in form["questions"] for entry in each.get("subquestions", ()))]
    defaults = dict(leaves(VALUES))
    assert {entry["variable"]: entry["default"] for entry in questions} == {
        entry["variable"]: defaults[entry["variable"]] for entry in questions
    }
    assert form["namespace"] == NAMESPACE


def test_the_schema_knows_every_value_and_no_other() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def names(part: Mapping[str, Any], path: str = "") -> Iterator[str]:
        definition = schema["definitions"].get(part.get("$ref", "").rpartition("/")[2], part)
        for key, entry in definition.get("properties", {}).items():
            yield f"{path}{key}"
            yield from names(entry, f"{path}{key}.")

    typed = set(names(schema))
    free = (
        "podAnnotations", "podLabels", "nodeSelector", "resources", "tolerations", "imagePullSecrets", "monitoring.labels",
        "affinity", "topologySpreadConstraints", "extraEnv", "extraVolume",
    )  # fmt: skip
    paths = {path for path, _ in leaves(VALUES) if not path.startswith(free)}
    assert paths <= typed
    groups = {path.rpartition(".")[0] for path in typed} | {"global.cattle"}
    assert {path for path in typed - paths - groups if not path.startswith(free)} == set()


DOCTOR = f"{NAME}-doctor"


def permissions_of_the_doctor(objects: Built) -> list[Permission]:
    return [*permissions(objects["ClusterRole", DOCTOR]), *permissions(objects["Role", DOCTOR])]


def test_the_doctor_exists_during_the_test_only(helm: Helm) -> None:
    """All of its objects are hooks that are deleted, whatever its result. They have one name, as `helm test --logs` needs it."""
    objects = helm.render(tests=True)
    added = objects.keys() - helm.render().keys()
    assert {objects[key]["metadata"]["name"] for key in added} == {DOCTOR}
    for key in added:
        annotations = objects[key]["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "test"
        policies = {"before-hook-creation", "hook-succeeded", "hook-failed"}
        assert set(annotations["helm.sh/hook-delete-policy"].split(",")) == policies
    # The Service's pods, the disruption budget, the PodMonitor and the doctor itself select the extender by this label.
    assert objects["Pod", DOCTOR]["metadata"]["labels"]["app.kubernetes.io/name"] != NAME


def test_the_doctors_pod_meets_the_restricted_pod_security_standard(helm: Helm) -> None:
    """Longhorn's namespace may enforce it."""
    assert_restricted(helm.render(tests=True)["Pod", DOCTOR]["spec"])


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"doctor": {"probe": False}}, id="switched off"),
        pytest.param(
            {"settings": {"enforcement": "observe"}}, id="refusals are only observed, so every node would fit"
        ),
    ],
)
def test_without_a_probe_the_doctor_may_change_nothing(helm: Helm, values: Mapping[str, Any]) -> None:
    """A question about permissions is the only thing that it creates. It may ask what would become of a pod in
    `default`, and whether the placement guard answers about a replica.
    """
    objects = helm.render(values, tests=True)
    granted = permissions_of_the_doctor(objects)
    writes = {(verb, kind) for verb, _, kind, _ in granted if verb not in ("get", "list")}
    assert writes == {("create", "subjectaccessreviews"), ("create", "replicas")}
    assert permissions(objects["Role", f"default/{DOCTOR}"]) == [("create", "", "pods", "")]
    assert "--no-probe" in objects["Pod", DOCTOR]["spec"]["containers"][0]["args"]


def test_with_a_probe_the_doctor_may_create_it_and_remove_it(helm: Helm) -> None:
    """It reads no Secrets, of ConfigMaps that with the settings, and changes no object that exists."""
    objects = helm.render(tests=True)
    granted = permissions_of_the_doctor(objects)
    assert {verb for verb, *_ in granted} == {"create", "delete", "get", "list"}
    assert not {kind for _, _, kind, _ in granted} & {"secrets", "pods/exec"}
    config_maps = [(verb, name) for verb, _, kind, name in granted if kind == "configmaps"]
    assert config_maps == [("get", "longhorn-scheduler-extender")]
    assert "--no-probe" not in objects["Pod", DOCTOR]["spec"]["containers"][0]["args"]
    assert ("Role", f"default/{DOCTOR}") not in objects
