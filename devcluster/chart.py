"""Makes the templates of the Helm chart that are the same objects as in manifests/.

Manifests and chart have one source: a file of manifests becomes a template by four changes of its text, so that its comments stay. Longhorn's
namespace becomes the release's, objects get the chart's labels, and the whole depends on a value. Only objects that values change
(Deployment, ConfigMap, Service, doctor) are written by hand; a test compares what chart and kustomizations render.

After a change of the manifests: ``python -m devcluster.chart``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster import chart_readme

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "manifests"
CHART = ROOT / "charts/longhorn-scheduler-extender"
NAMESPACE = "longhorn-system"
SECOND_SCHEDULER = "longhorn-scheduler"
_RELEASE_NAMESPACE = "{{ .Release.Namespace }}"
_NETWORK = "        - ipBlock: {cidr: CONTROL-PLANE-NETWORK}\n"
_MUTATING_POLICIES = 'apiVersion: {{ include "extender.mutatingPolicies" . }}\n'
_NAMESPACED = frozenset(
    {"ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "PodMonitor", "PrometheusRule", "Role", "RoleBinding", "Secret",
     "Service", "ServiceAccount"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """Files of manifests that a value switches on.

    Attributes:
        folder: below manifests/, and of the templates
        names: of the files, without a suffix
        component: the label ``app.kubernetes.io/component``
        condition: what must be true in the chart's values; "" for always
        replacements: texts of the manifests, and what stands for them in the template
        more_labels: a value with more labels of the objects; "" for none
        program: the label ``app.kubernetes.io/name``
    """

    folder: str
    names: tuple[str, ...]
    component: str
    condition: str = ""
    replacements: Mapping[str, str] = field(default_factory=dict[str, str])
    more_labels: str = ""
    program: str = "longhorn-scheduler-extender"


PARTS = (
    Part(
        "access",
        (
            "serviceaccount",
            "clusterrole",
            "role",
            "admissionpolicy",
            "offers",
            "guard-service",
            "guard-secret",
            "guard-admissionpolicy",
            "guard-webhook",
        ),
        "scheduler-extender",
        replacements={
            "# Only the pods that ask for the token get it.\n": "  {{- with .Values.serviceAccount.annotations }}\n  annotations:\n"
            "    {{- toYaml . | nindent 4 }}\n  {{- end }}\n# Only the pods that ask for the token get it.\n"
        },
    ),
    Part("base", ("poddisruptionbudget",), "scheduler-extender"),
    Part(
        "overlays/ask-policy",
        ("policy",),
        "ask-policy",
        ".Values.askPolicy.enabled",
        {"apiVersion: admissionregistration.k8s.io/v1\n": _MUTATING_POLICIES},
    ),
    Part(
        "overlays/scheduler-name-policy",
        ("policy",),
        "scheduler-name-policy",
        ".Values.schedulerNamePolicy.enabled",
        {"apiVersion: admissionregistration.k8s.io/v1\n": _MUTATING_POLICIES},
    ),
    Part(
        "overlays/second-scheduler/access",
        ("serviceaccount", "clusterrolebinding", "role", "rolebinding", "lease"),
        "second-scheduler",
        ".Values.secondScheduler.enabled",
        program=SECOND_SCHEDULER,
    ),
    Part(
        "overlays/second-scheduler",
        ("deployment", "poddisruptionbudget"),
        "second-scheduler",
        ".Values.secondScheduler.enabled",
        {
            "image: registry.k8s.io/kube-scheduler\n": 'image: {{ include "extender.kubeSchedulerImage" . }}\n',
            "      serviceAccountName: longhorn-scheduler\n": "      serviceAccountName: longhorn-scheduler\n"
            "      {{- with .Values.imagePullSecrets }}\n      imagePullSecrets:\n"
            "        {{- toYaml . | nindent 8 }}\n      {{- end }}\n",
            # kube-scheduler reads its configuration at its start only.
            "    metadata:\n      labels:\n": "    metadata:\n      annotations:\n"
            '        checksum/config: {{ include "extender.kubeSchedulerConfig" . | sha256sum }}\n      labels:\n',
            # kube-scheduler's certificate, and the authority that it trusts: docs/tls.md.
            "        seccompProfile:\n": "        {{- if .Values.tls.enabled }}\n        fsGroup: 65532\n        {{- end }}\n"
            "        seccompProfile:\n",
            "          volumeMounts:\n": "          volumeMounts:\n            {{- if .Values.tls.enabled }}\n"
            "            - name: client\n              mountPath: /etc/longhorn-scheduler-extender-client\n"
            "              readOnly: true\n            {{- end }}\n",
            "      volumes:\n": "      volumes:\n        {{- if .Values.tls.enabled }}\n        - name: client\n"
            "          secret:\n            secretName: longhorn-scheduler-extender-client\n"
            "            defaultMode: 0440\n        {{- end }}\n",
        },
        program=SECOND_SCHEDULER,
    ),
    Part(
        "overlays/tls-cert-manager",
        ("certificates",),
        "scheduler-extender",
        "and .Values.tls.enabled .Values.tls.certManager.enabled",
    ),
    Part(
        "overlays/network-policy",
        ("networkpolicy",),
        "scheduler-extender",
        ".Values.networkPolicy.enabled",
        {
            _NETWORK: "        {{- range .Values.networkPolicy.controlPlaneNetworks }}\n"
            "        - ipBlock: {cidr: {{ . | quote }}}\n        {{- end }}\n",
            "metadata.name: monitoring}": "metadata.name: {{ .Values.networkPolicy.prometheusNamespace }}}",
        },
    ),
    Part(
        "monitoring",
        ("podmonitor", "prometheusrule"),
        "scheduler-extender",
        ".Values.monitoring.enabled",
        {
            "      path: /metrics\n": '      path: /metrics\n      {{- with include "extender.scrapeTLS" . }}{{ . | nindent 6 }}{{ end }}\n',
            "runbook_url: docs/": "runbook_url: {{ .Values.monitoring.repositoryURL }}docs/",
        },
        more_labels=".Values.monitoring.labels",
    ),
)
# What ConfigMaps hold. Helm would take the dashboard's own braces for its own in a template.
COPIES = {
    "monitoring/dashboard.json": "files/dashboard.json",
    "overlays/second-scheduler/config/kube-scheduler.yaml": "files/kube-scheduler.yaml",
}


def template(text: str, part: Part, source: str) -> str:
    """A file of manifests as a template.

    Raises:
        ValueError: the file has braces that Helm would read, or an object whose metadata does not begin with its name
    """
    if "{{" in text:
        raise ValueError(f"{source}: Helm would read its braces")
    documents = [_document(document, part, source) for document in text.split("\n---\n")]
    body = "\n---\n".join(documents)
    for before, after in part.replacements.items():
        body = body.replace(before, after)
    head = f"{{{{- /* Made from {source} by devcluster/chart.py; change it there. */}}}}\n"
    return head + (f"{{{{- if {part.condition} }}}}\n{body}{{{{- end }}}}\n" if part.condition else body)


def _document(text: str, part: Part, source: str) -> str:
    (kind,) = re.findall(r"^kind: (\w+)$", text, re.M)
    lines = [line if line.lstrip().startswith("#") else _in_release(line) for line in text.splitlines(keepends=True)]
    text = "".join(lines)
    before, separator, after = text.partition("\nmetadata:\n")
    name, newline, rest = after.partition("\n")
    if not separator or not name.startswith("  name: "):
        raise ValueError(f"{source}: metadata of the {kind} do not begin with its name")
    own_labels = f"  labels:\n    app.kubernetes.io/name: {part.program}\n"
    if rest.startswith("  namespace: "):
        line, _, rest = rest.partition("\n")
        namespace = f"{line}\n"
    else:
        namespace = f"  namespace: {_RELEASE_NAMESPACE}\n" if kind in _NAMESPACED else ""
    rest = rest.removeprefix(own_labels)
    arguments = f'(list . "{part.component}" "{part.program}")'
    labels = f'  labels:\n    {{{{- include "extender.labels" {arguments} | nindent 4 }}}}\n'
    if part.more_labels:
        labels += f"    {{{{- with {part.more_labels} }}}}\n    {{{{- toYaml . | nindent 4 }}}}\n    {{{{- end }}}}\n"
    return f"{before}{separator}{name}{newline}{namespace}{labels}{rest}"


def _in_release(line: str) -> str:
    return re.sub(rf"\b{NAMESPACE}\b", _RELEASE_NAMESPACE, line)


def files() -> Iterator[tuple[Path, str]]:
    """Every file of the chart that is made, with its content."""
    for part in PARTS:
        for name in part.names:
            source = MANIFESTS / part.folder / f"{name}.yaml"
            folder = part.folder.removeprefix("overlays/").removesuffix("/access")
            target = CHART / "templates" / folder / f"{name}.yaml"
            yield target, template(source.read_text(), part, str(source.relative_to(ROOT)))
    for manifest, copy in COPIES.items():
        yield CHART / copy, (MANIFESTS / manifest).read_text()
    yield CHART / "README.md", chart_readme.readme(CHART)


if __name__ == "__main__":
    for path, content in files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
