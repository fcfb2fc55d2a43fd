"""The real kube-scheduler calls the extender by TLS with a certificate of its own; nothing is answered to any other caller."""

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from app.extender.leadership_lifecycle import NAME
from app.kube.resources import ENDPOINT_SLICES
from devcluster.http_check import http_request, is_filtered
from devcluster.pki import CertificateAuthority, CertificatePair
from devcluster.process import http_ok
from devcluster.programs import NAMESPACE, primary_address
from devcluster.stack import FAST_LEASE
from tests.control_plane import ControlPlane
from tests.e2e.leader_monitor import PROBE
from tests.e2e.objects import Workload
from tests.e2e.rig import CONFIGS, Rig
from tests.worlds.service import EXTENDER
from tests.worlds.stopwatch import Stopwatch
from tests.worlds.tls import SERVER_HOST, MountedSecret

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
GROUP = "tls"
FITTING = "large"
CANDIDATE = "extender-tls"
# The kubelet's files on a control-plane node.
CLIENT_FOLDER = "/etc/kubernetes/config/longhorn-scheduler-extender"
ROUTES = ("/filter", "/prioritize", "/preempt", "/explain", "/state", "/metrics", "/readyz", "/healthz", "/docs")
STALLED = 600


class World:
    """A cluster whose kube-scheduler and extender authenticate each other.

    Attributes:
        authority: signs the extender's certificate
        callers: signs kube-scheduler's
        server, client: the files of both, which the kubelet or an administrator replaces
    """

    def __init__(self, folder: Path, control_plane: ControlPlane) -> None:
        self.folder = folder
        self.authority = CertificateAuthority.create(folder / "authority", "extender")
        self.callers = CertificateAuthority.create(folder / "callers", "callers")
        self.server = MountedSecret(folder / "server")
        self.client = MountedSecret(folder / "client")
        self.server.write_pair(self.authority.server("server", [SERVER_HOST]), self.callers)
        self.client.write_pair(self.callers.client("kube-scheduler"), self.authority)
        config = folder / "config.yaml"
        text = (CONFIGS / "recommended-managed-tls.yaml").read_text()
        assert CLIENT_FOLDER in text
        config.write_text(text.replace(CLIENT_FOLDER, str(self.client.folder)))
        self.config = config
        self.rig = Rig(folder, control_plane, candidates=0, config=config)
        self.host = primary_address()
        self.port = 0
        self.probes = ""

    def start(self) -> None:
        """Starts the extender under its ServiceAccount, and waits until it answers."""
        cluster = self.rig.cluster
        self.port = cluster.free_port()
        probe_port = cluster.free_port()
        self.probes = f"http://{self.host}:{probe_port}"
        account = cluster.service_account_kubeconfig(NAMESPACE, NAME)
        files = self.server.files
        arguments = [
            "--kubeconfig",
            str(account),
            "--host",
            self.host,
            "--port",
            str(self.port),
            "--identity",
            CANDIDATE,
        ]
        arguments += ["--tls-cert-file", files.certificate, "--tls-private-key-file", files.private_key]
        arguments += ["--client-ca-file", files.client_ca, "--probe-port", str(probe_port), *FAST_LEASE]
        cluster.spawn(CANDIDATE, [EXTENDER, "serve", *arguments], ready=http_ok(f"{self.probes}/healthz"))
        self.rig.until("the extender answers", self.answers)

    def context(self, pair: CertificatePair | None = None) -> ssl.SSLContext:
        """A caller's TLS; without a pair it shows no certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.authority.bundle)
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def call(self, context: ssl.SSLContext | None, path: str = "/filter") -> tuple[int, str]:
        """POSTs a request to the port of kube-scheduler, by TLS or without."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=10)
        try:
            connection.connect()
            if context is not None:
                connection.sock = context.wrap_socket(connection.sock, server_hostname=SERVER_HOST)
            connection.request("POST", path, json.dumps(PROBE), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def answers(self, pair: CertificatePair | None = None) -> bool:
        """Whether the extender decides for a caller; without a pair, for kube-scheduler's certificate as it is now."""
        own = CertificatePair(self.client.folder / "tls.crt", self.client.folder / "tls.key")
        with suppress(OSError, http.client.HTTPException):
            status, text = self.call(self.context(pair or own))
            return status == 200 and is_filtered(status, json.loads(text))
        return False

    def place(self, app: str) -> None:
        """Creates a pod, which fits on one node only, and waits until it runs there; kube-scheduler connects again for it."""
        self.rig.cluster.processes["forwarder"].restart()
        self.rig.create(Workload(app=app, group=GROUP).statefulset(1))
        self.rig.until("the pod runs", lambda: self.rig.ready(app, 1))
        assert self.rig.nodes_of(app) == {f"{app}-0": FITTING}
        self.rig.remove(app)


@pytest.fixture(scope="module")
def world(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Two idle nodes, of which one has room."""
    running = World(tmp_path_factory.mktemp("tls"), control_plane)
    with running.rig:
        running.rig.add_nodes(GROUP, {FITTING: ["200Gi"], "small": ["50Gi"]})
        running.start()
        yield running


@pytest.mark.smoke
def test_pods_are_placed_by_the_extenders_answer(world: World) -> None:
    """kube-scheduler's file is the documented one; the EndpointSlice names the port as the Service of the overlay does."""
    world.place("placed")
    (port,) = world.rig.cluster.api.get(ENDPOINT_SLICES.path(NAMESPACE, NAME))["ports"]
    assert (port["name"], port["port"]) == ("https", world.port)


def test_nothing_is_answered_to_a_caller_without_a_certificate_of_the_authority(world: World) -> None:
    """Nor without TLS. A certificate that the extender's own authority signed is none, if that does not sign those of callers."""
    stranger = CertificateAuthority.create(world.folder / "stranger", "callers").client("kube-scheduler")
    pairs = (None, stranger, world.authority.client("kube-scheduler"))
    for context in (None, *map(world.context, pairs)):
        for path in ROUTES:
            with pytest.raises((OSError, http.client.HTTPException)):
                world.call(context, path)


def test_the_port_for_probes_says_whether_the_process_is_well_and_nothing_else(world: World) -> None:
    """A kubelet has no certificate."""
    assert {path: http_request(f"{world.probes}{path}") for path in ("/healthz", "/readyz")} == {
        "/healthz": (200, {"status": "ok"}),
        "/readyz": (200, {"status": "ok"}),
    }
    others = set(ROUTES) - {"/healthz", "/readyz"}
    assert {http_request(f"{world.probes}{path}")[0] for path in others} == {404}


@pytest.mark.smoke
def test_without_its_certificate_kube_scheduler_gets_no_answer(world: World) -> None:
    """The pod's event has the error that the guide explains; with the certificate the pod is placed."""
    text = world.config.read_text()
    without = world.folder / "without.yaml"
    without.write_text(
        "".join(line for line in text.splitlines(keepends=True) if "File: " not in line or "caFile" in line)
    )
    rig = world.rig
    rig.use_config(without)
    rig.create(Workload(app="refused", group=GROUP).statefulset(1))
    try:
        # kube-scheduler may see the pod before its claim, and says that first.
        error = re.compile(r"https://\S+: (EOF|.*connection reset by peer)")
        rig.until("the error", lambda: error.search(rig.scheduling_problem("refused")))
    finally:
        rig.use_config(world.config)
    rig.until("the pod runs", lambda: rig.ready("refused", 1))
    rig.remove("refused")


def test_handshakes_that_never_end_hold_up_no_pod(world: World) -> None:
    """More connections than there may be, from the address that kube-scheduler has, too."""
    with ExitStack() as stack:
        for _ in range(STALLED):
            stack.enter_context(socket.create_connection((world.host, world.port), timeout=10))
        stopwatch = Stopwatch(world.rig.cluster.processes[CANDIDATE].pid)
        assert world.answers()
        # kube-scheduler gives up after 3 s.
        assert stopwatch.seconds < 3
        world.place("unhindered")


@pytest.mark.smoke
def test_both_certificates_are_replaced_while_pods_are_placed(world: World) -> None:
    """First the extender trusts the next authority of callers, then kube-scheduler shows its certificate, then the former one ends."""
    former = world.callers.client("former")
    successor = CertificateAuthority.create(world.folder / "successor", "successor")
    renewed = world.authority.server("renewed", [SERVER_HOST])
    world.server.write_pair(renewed, world.callers, successor)
    newcomer = successor.client("newcomer")
    world.rig.until("the next authority is trusted", lambda: world.answers(newcomer))
    assert world.answers(former)
    world.client.write_pair(successor.client("kube-scheduler"), world.authority)
    world.place("between")
    world.server.write_pair(renewed, successor)
    world.rig.until("the former authority is not trusted", lambda: not world.answers(former))
    world.place("after")


def test_a_certificate_that_cannot_be_used_changes_nothing_but_a_count(world: World) -> None:
    """The previous one stays, and the error is in the log."""
    current = {name: (world.server.folder / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")}
    world.server.write({**current, "tls.crt": b"none"})
    log = world.rig.cluster.logs / f"{CANDIDATE}.log"
    world.rig.until("the error", lambda: "serving certificate refused, the one before stays" in log.read_text())
    assert world.answers()
    world.server.write(current)
