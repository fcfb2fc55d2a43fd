"""`longhorn-extender doctor`: what is printed and where it stops. The whole is tested on a real control plane."""

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scheduler_core.convert.installed_objects import ANSWERED
from scheduler_core.installation import diagnosis
from scheduler_core.installation.facts import Finding, Severity
from tests import builders as make
from tests.app.cli.test_explain_live import run_in_thread
from tests.worlds.command_line import Result, Run
from tests.worlds.fake_api import Behaviour, FakeApi, failing, serve
from tests.worlds.service import EXTENDER

NAMESPACE = "longhorn-system"
NAME = "longhorn-scheduler-extender"
PROBE_KINDS = ("storageclasses", "persistentvolumeclaims", "namespaces", "pods")
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
CALL_FAILED = 'Post "http://10.0.0.1:9504/filter": dial tcp 10.0.0.1:9504: connect: connection refused'


class Api(FakeApi):
    """A cluster without an extender.

    Attributes:
        created, deleted: what was, as paths
        refuse: paths whose creation is refused
        condition: what kube-scheduler says about every pod
        policy: whether new pods get the extender's resource
    """

    def __init__(self) -> None:
        super().__init__()
        self.created: list[str] = []
        self.deleted: list[str] = []
        self.refuse: set[str] = set()
        self.condition = ""
        self.policy = True
        for path in ("/api/v1/pods", f"/api/v1/namespaces/{NAMESPACE}/pods", "/api/v1/events"):
            self.add(path)
        for plural in ("settings", "nodes"):
            self.add(f"/apis/longhorn.io/v1beta2/namespaces/{NAMESPACE}/{plural}")
        self.add("/apis/storage.k8s.io/v1/storageclasses", make.storage_class(binding="Immediate"))

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers one request; everything can be created and deleted."""
        if request.path == "/version":
            return web.json_response({"gitVersion": "v1.36.3"})
        if request.path == REVIEWS:
            return web.json_response({"status": {"allowed": True}}, status=201)
        if request.method == "POST" and "dryRun" in request.query:
            return web.json_response(self._admit(await request.json()), status=201)
        if request.method == "POST":
            if request.path.rpartition("/")[2] in self.refuse:
                return await failing(403, "not allowed", "Forbidden")(request)
            body = await request.json()
            self.created.append(f"{request.path}/{body['metadata']['name']}")
            return web.json_response(body, status=201)
        if request.method == "DELETE":
            self.deleted.append(request.path)
            return web.json_response({})
        if request.path in self.created:
            return web.json_response(self._progress())
        return await super().handle(request)

    def add_process(self, **ports: int) -> None:
        """Adds the extender's pod `one` with ports by name."""
        metadata = {"name": "one", "namespace": NAMESPACE, "labels": {"app.kubernetes.io/name": NAME}}
        container = {"ports": [{"name": name, "containerPort": port} for name, port in ports.items()]}
        pod = {"metadata": metadata, "spec": {"containers": [container]}, "status": {"podIP": "10.0.0.1"}}
        self.add(f"/api/v1/namespaces/{NAMESPACE}/pods", pod)

    def _admit(self, body: dict[str, Any]) -> dict[str, Any]:
        resource = {"longhorn.io/scheduler-extender": "1"} if self.policy else {}
        body["spec"]["containers"][0]["resources"] = {"requests": resource}
        return body

    def _progress(self) -> dict[str, Any]:
        waiting = {"type": "PodScheduled", "status": "False", "message": self.condition}
        return {"metadata": {"name": "probe"}, "status": {"conditions": [waiting]}}


async def run_doctor(handle: Any, folder: Path, run: Run, *arguments: str) -> Result:
    """Runs the command on a cluster whose API server is `handle`."""
    async with serve(handle, folder) as kubeconfig:
        return await run_in_thread(run, "doctor", "--kubeconfig", str(kubeconfig), *arguments)


async def findings(handle: Any, folder: Path, run: Run, *arguments: str) -> list[dict[str, Any]]:
    """What is found without a probe."""
    result = await run_doctor(handle, folder, run, "--no-probe", "-o", "json", *arguments)
    return list(result.answer["findings"])


async def test_the_table_has_each_finding_and_what_mends_it(tmp_path: Path, run: Run) -> None:
    result = await run_doctor(Api().handle, tmp_path, run, "--no-probe")
    lines = result.rows
    assert (result.code, result.err) == (1, "")
    assert lines[0] == "CHECK RESULT FINDING"
    index = lines.index(f"pods error deployment/{NAME}: no pod of the extender runs")
    assert lines[index + 1].startswith("to mend: apply the manifests or the chart")
    assert "registration skipped no probe pod was created" in lines
    assert lines[-1].endswith("to mend")


@pytest.mark.parametrize(
    ("severity", "strict", "code"), [("warning", False, 0), ("warning", True, 1), ("error", False, 1), ("ok", True, 0)]
)
async def test_warnings_alone_fail_with_strict_only(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch, *, severity: str, strict: bool, code: int
) -> None:
    finding = Finding(Severity(severity), "x", check="pods")
    arguments = ["--strict"] if strict else []
    monkeypatch.setattr(diagnosis, "diagnose", lambda *_: [finding])
    result = await run_doctor(Api().handle, tmp_path, run, "--no-probe", *arguments)
    assert result.code == code
    assert result.out.endswith("all is well\n" if severity == "ok" else "1 to mend\n")


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"scheduler-extender-enabled": "yes please"}, "scheduler-extender-enabled: 'yes please' is not a boolean"),
        ({"scheduler-extender-enforcment": "observe"}, "scheduler-extender-enforcment: there is no such setting"),
    ],
)
async def test_the_settings_are_read_without_a_process_that_answers(
    tmp_path: Path, run: Run, data: dict[str, str], problem: str
) -> None:
    """No process runs that could say what it refuses."""
    api = Api()
    config_map = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data}
    api.add(f"/api/v1/namespaces/{NAMESPACE}/configmaps", config_map)
    found = await findings(api.handle, tmp_path, run)
    (refused,) = [entry for entry in found if "setting is refused" in entry["what"]]
    assert problem in refused["what"]
    assert (refused["severity"], refused["where"]) == ("warning", f"configmap/{NAME}")


@pytest.mark.parametrize("ready", [True, False])
async def test_with_tls_a_process_is_asked_by_its_port_for_probes(tmp_path: Path, run: Run, ready: bool) -> None:
    api = Api()
    api.add_process(http=9504, probes=9508)
    services = f"/api/v1/namespaces/{NAMESPACE}/services"
    spec = {"clusterIP": "10.43.0.9", "ports": [{"name": "https", "port": 9504}]}
    api.add(services, {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": spec})
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        if "/proxy/" not in request.path:
            return await api.handle(request)
        asked.append(request.path)
        return web.json_response({"status": "ok"} if ready else {"error": "not ready"}, status=200 if ready else 503)

    found = await findings(handle, tmp_path, run)
    says = [entry["what"] for entry in found if (entry["check"], entry["where"]) == ("caches", "pod/one")]
    assert asked == [f"/api/v1/namespaces/{NAMESPACE}/pods/http:one:9508/proxy/readyz"]
    assert says == ([] if ready else ["is not ready: not ready"])


async def test_json_has_the_findings_in_order(tmp_path: Path, run: Run) -> None:
    result = await run_doctor(Api().handle, tmp_path, run, "--no-probe", "-o", "json")
    answer = result.answer
    assert (answer["apiVersion"], answer["kind"], answer["well"]) == ("longhorn-extender/v1", "Diagnosis", False)
    assert answer["findings"][0] == {
        "check": "facts", "severity": "ok", "what": "everything could be read", "where": "", "command": "",
    }  # fmt: skip
    (late,) = [entry for entry in answer["findings"] if entry["check"] == "storage-classes"]
    assert late["where"] == "storageclass/longhorn"


@pytest.mark.parametrize("refused", ["", *PROBE_KINDS])
async def test_whatever_the_probe_has_created_is_deleted(tmp_path: Path, run: Run, refused: str) -> None:
    api = Api()
    api.condition = CALL_FAILED
    api.refuse = {refused}
    result = await run_doctor(api.handle, tmp_path, run, "--uninstall")
    assert result.code == 1
    assert [path for path in api.deleted if path in api.created] == api.created[::-1]
    assert ("still calls the extender" in result.out) is (refused == "")


async def test_without_a_policy_a_pod_without_the_resource_is_tried_as_well(tmp_path: Path, run: Run) -> None:
    api = Api()
    api.condition = CALL_FAILED
    api.policy = False
    await run_doctor(api.handle, tmp_path, run)
    assert len(api.created) == 2 * len(PROBE_KINDS)
    assert sorted(api.deleted) == sorted(api.created)


async def test_pods_of_the_second_kube_scheduler_are_found(tmp_path: Path, run: Run) -> None:
    api = Api()
    spec = {"schedulerName": "longhorn-scheduler"}
    api.add("/api/v1/pods", {"metadata": {"name": "db-0", "namespace": "shop"}, "spec": spec})
    done = {"metadata": {"name": "job-1", "namespace": "shop"}, "spec": spec, "status": {"phase": "Succeeded"}}
    api.add("/api/v1/pods", done)
    found = await findings(api.handle, tmp_path, run, "--uninstall")
    requesting = [(entry["severity"], entry["where"]) for entry in found if entry["check"] == "requesting-pods"]
    assert requesting == [("warning", "pod shop/db-0")]


@pytest.mark.parametrize("policy", [True, False], ids=["one probe", "two probes"])
async def test_a_signal_while_the_probe_is_removed_lets_the_removal_end(tmp_path: Path, policy: bool) -> None:
    api = Api()
    api.condition = CALL_FAILED
    api.policy = policy
    processes: list[asyncio.subprocess.Process] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method == "DELETE":
            processes[0].send_signal(signal.SIGINT)
            # The signal is handled before the answer.
            await asyncio.sleep(0.2)
        return await api.handle(request)

    async with serve(handle, tmp_path) as kubeconfig:
        process = await asyncio.create_subprocess_exec(
            EXTENDER, "doctor", "--kubeconfig", str(kubeconfig), stderr=asyncio.subprocess.PIPE
        )
        processes.append(process)
        _, problem = await process.communicate()
    assert sorted(api.deleted) == sorted(api.created)
    assert (process.returncode, problem) == (130, b"longhorn-extender: interrupted; the probe pod is removed\n")


async def test_what_cannot_be_removed_is_named(tmp_path: Path, run: Run) -> None:
    """On standard error, so that an administrator removes it."""
    api = Api()
    api.condition = CALL_FAILED
    answer = api.handle

    async def handle(request: web.Request) -> web.StreamResponse:
        return await (failing(403, "no", "Forbidden") if request.method == "DELETE" else answer)(request)

    result = await run_doctor(handle, tmp_path, run, "--uninstall")
    assert result.err.count("could not be removed") == len(api.created) == len(PROBE_KINDS)


@pytest.mark.parametrize(
    ("answered", "proxy", "says"),
    [
        pytest.param(True, None, "answers", id="it answers"),
        pytest.param(False, failing(503, "dial tcp: i/o timeout", "ServiceUnavailable"), "i/o timeout", id="no way"),
        pytest.param(False, failing(404), "do not trust its certificate", id="another authority"),
    ],
)
async def test_the_placement_guard_is_tried_by_a_dry_run(
    tmp_path: Path, run: Run, answered: bool, proxy: Behaviour | None, says: str
) -> None:
    api = Api()
    guard = f"{NAME}-placement-guard"
    api.add("/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", {"metadata": {"name": guard}})
    api.add_process(http=9504, https=1234)
    lease = {"metadata": {"name": NAME, "namespace": NAMESPACE}, "spec": {"holderIdentity": "one"}}
    api.add(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases", lease)
    state = {"service": {"answering": True, "placementGuard": {"mode": "enforce"}}}

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/replicas"):
            body = await request.json()
            body["metadata"]["annotations"] |= {ANSWERED: "true"} if answered else {}
            return web.json_response(body, status=201)
        if "https:one:1234/proxy" in request.path and proxy is not None:
            return await proxy(request)
        return web.json_response(state) if "/proxy/" in request.path else await api.handle(request)

    found = await findings(handle, tmp_path, run)
    (finding,) = [entry for entry in found if entry["check"] == "placement-guard"]
    assert (finding["severity"] == "ok") is answered
    assert says in finding["what"]


async def test_what_may_not_be_read_is_a_finding(tmp_path: Path, run: Run) -> None:
    api = Api()
    answer = api.handle

    async def handle(request: web.Request) -> web.StreamResponse:
        refused = request.path in {"/api/v1/events", REVIEWS}
        return await (failing(403, "not allowed", "Forbidden") if refused else answer)(request)

    found = {entry["check"]: entry["severity"] for entry in await findings(handle, tmp_path, run)}
    assert (found["facts"], found["events"], found["permissions"]) == ("warning", "skipped", "skipped")


@pytest.mark.parametrize(("pod", "severity"), [("db-0", "warning"), ("longhorn-extender-doctor-0a1b2c3d", "ok")])
async def test_events_of_probes_do_not_count(tmp_path: Path, run: Run, pod: str, severity: str) -> None:
    api = Api()
    event = {
        "metadata": {"name": "a", "namespace": "shop"},
        "involvedObject": {"namespace": "shop", "name": pod},
        "message": CALL_FAILED,
        "lastTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    api.add("/api/v1/events", event)
    found = {entry["check"]: entry["severity"] for entry in await findings(api.handle, tmp_path, run)}
    assert found["events"] == severity


async def test_an_api_server_that_does_not_answer_is_one_line(tmp_path: Path, run: Run) -> None:
    result = await run_doctor(failing(500, "down"), tmp_path, run)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
