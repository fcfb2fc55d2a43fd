"""The command lines of the control plane: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok. What would only
cost time on a single machine is off: leader election, cloud providers, fsync. The rest is as in a real cluster: TLS, Node and
RBAC authorisation, one service account per controller.
"""

import shutil
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from devcluster import kubeconfig
from devcluster.build import API_SERVER, CONTROLLER_MANAGER, ETCD, KWOK, SCHEDULER
from devcluster.directories import Directories
from devcluster.pki import CertificateAuthority, CertificatePair, SigningKey
from devcluster.ports import Ports
from devcluster.process import STOP_TIMEOUT, Process, http_ok

_FOLDER = Path(__file__).parent
_LOOPBACK = "127.0.0.1"
# RFC 5737: an address for documentation. The API server must advertise an address, and kwok needs one per node; no program uses them.
_UNUSED_ADDRESS = "198.51.100.1"
_SERVICE_CIDR = "10.96.0.0/16"
# Its graceful shutdown waits up to a minute for watches to end. What it has answered is in etcd, so a kill loses nothing.
_API_SERVER_STOP_TIMEOUT = 2.0
_MAX_AUDIT_MEGABYTES = 100_000  # never rotated: tests read one file


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """The options of a cluster.

    Attributes:
        nodes: nodes to start with, named ``node-1`` and so on
        scheduler_config: a KubeSchedulerConfiguration file; None: kube-scheduler's defaults, no extenders
        url_prefix: the ``host:port`` of that file's extenders (see scheduler_config.rewrite)
        audit: write the audit log
        extra_args: additional arguments by process name, such as ``{"kube-controller-manager": ["--kube-api-qps=100"]}``
        binaries: a folder with the programs; None: the cache, which is built first if necessary
    """

    nodes: int = 0
    scheduler_config: Path | None = None
    url_prefix: str | None = None
    audit: bool = True
    extra_args: Mapping[str, Sequence[str]] = field(default_factory=dict)
    binaries: Path | None = None


class Components:
    """Creates one cluster's processes, and first its certificates and kubeconfigs."""

    def __init__(self, directories: Directories, binaries: Path, ports: Ports, options: ClusterOptions) -> None:
        self._directories = directories
        self._binaries = binaries
        self._ports = ports
        self._options = options
        self._authority = CertificateAuthority.create(directories.pki)
        self._signing_key = SigningKey.create(directories.pki)
        self._server_pair = self._authority.server("server")
        self._ssl_context = ssl.create_default_context(cafile=self.authority)
        self._etcd_port = ports.take()
        self._api_port = ports.take()
        kubeconfig.write_for_client(directories.kubeconfig, self.server, self.authority, self._admin_pair())
        for user in (CONTROLLER_MANAGER, SCHEDULER):
            self._write_kubeconfig(user, self._authority.client(f"system:{user}"))
        self._write_kubeconfig(KWOK, self._authority.client(KWOK, ["system:masters"]))

    @property
    def server(self) -> str:
        """The API server's URL, which a restart does not change."""
        return f"https://{_LOOPBACK}:{self._api_port}"

    @property
    def authority(self) -> Path:
        """The authority's certificate, which verifies the API server."""
        return self._authority.bundle

    def kubeconfig_of(self, user: str) -> Path:
        return self._directories.kubeconfigs / f"{user}.kubeconfig"

    def etcd(self) -> Process:
        """The store. Without TLS, on the loopback address; without fsync, because no data has to survive a power cut."""
        url = f"http://{_LOOPBACK}:{self._etcd_port}"
        peer = f"http://{_LOOPBACK}:{self._ports.take()}"
        arguments = [
            "--name=devcluster",
            f"--data-dir={self._directories.etcd}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=devcluster={peer}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]
        return self._process(ETCD, arguments, f"{url}/health")

    def api_server(self) -> Process:
        """The API server. It is ready when its start-up hooks have run, among them the one for RBAC's default roles."""
        arguments = [
            f"--etcd-servers=http://{_LOOPBACK}:{self._etcd_port}",
            f"--bind-address={_LOOPBACK}",
            f"--secure-port={self._api_port}",
            f"--advertise-address={_UNUSED_ADDRESS}",
            "--endpoint-reconciler-type=none",
            # No kube-proxy runs here: so webhooks of a Service are called at the addresses of its EndpointSlices.
            "--enable-aggregator-routing=true",
            f"--client-ca-file={self.authority}",
            # No process has this certificate; without these flags all other processes keep logging that they are missing.
            f"--requestheader-client-ca-file={self.authority}",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            *self._serving_arguments(),
            "--authorization-mode=Node,RBAC",
            f"--service-cluster-ip-range={_SERVICE_CIDR}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._signing_key.public}",
            f"--service-account-signing-key-file={self._signing_key.private}",
            "--allow-privileged",
        ]
        if self._options.audit:
            arguments += [
                f"--audit-log-path={self._directories.audit_log}",
                f"--audit-policy-file={_FOLDER / 'audit-policy.yaml'}",
                f"--audit-log-maxsize={_MAX_AUDIT_MEGABYTES}",
            ]
        return self._process(API_SERVER, arguments, f"{self.server}/readyz")

    def controller_manager(self) -> Process:
        """All controllers except the one that assigns pod address ranges."""
        port = self._ports.take()
        file = self.kubeconfig_of(CONTROLLER_MANAGER)
        arguments = [
            f"--kubeconfig={file}",
            f"--authentication-kubeconfig={file}",
            f"--authorization-kubeconfig={file}",
            *self._health_arguments(port),
            "--leader-elect=false",
            "--controllers=*,-node-ipam-controller",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self._signing_key.private}",
            f"--root-ca-file={self.authority}",
        ]
        return self._process(CONTROLLER_MANAGER, arguments, f"https://{_LOOPBACK}:{port}/healthz")

    def scheduler(self, config: Path, name: str = SCHEDULER) -> Process:
        """A kube-scheduler; its configuration names its kubeconfig."""
        port = self._ports.take()
        arguments = [
            f"--config={config}",
            f"--authentication-kubeconfig={self.kubeconfig_of(SCHEDULER)}",
            f"--authorization-kubeconfig={self.kubeconfig_of(SCHEDULER)}",
            *self._health_arguments(port),
        ]
        return self._process(SCHEDULER, arguments, f"https://{_LOOPBACK}:{port}/readyz", name)

    def kwok(self) -> Process:
        """The kubelets of the nodes annotated ``kwok.x-k8s.io/node: fake``."""
        address = f"{_LOOPBACK}:{self._ports.take()}"
        stages = self._directories.config / "stages.yaml"
        shutil.copyfile(_FOLDER / "stages.yaml", stages)
        arguments = [
            f"--kubeconfig={self.kubeconfig_of(KWOK)}",
            f"--config={stages}",
            "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
            f"--server-address={address}",
            f"--node-ip={_UNUSED_ADDRESS}",
            "--node-port=0",
            "--node-lease-duration-seconds=40",
        ]
        return self._process(KWOK, arguments, f"http://{address}/healthz")

    def _process(self, program: str, arguments: Sequence[str], health: str, name: str = "") -> Process:
        return Process(
            name or program,
            [self._binaries / program, *arguments, *self._options.extra_args.get(name or program, ())],
            self._directories.logs / f"{name or program}.log",
            ready=http_ok(health, self._ssl_context),
            stop_timeout=_API_SERVER_STOP_TIMEOUT if program == API_SERVER else STOP_TIMEOUT,
        )

    def _serving_arguments(self) -> list[str]:
        return [f"--tls-cert-file={self._server_pair.certificate}", f"--tls-private-key-file={self._server_pair.key}"]

    def _health_arguments(self, port: int) -> list[str]:
        return [
            f"--bind-address={_LOOPBACK}",
            f"--secure-port={port}",
            *self._serving_arguments(),
            "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        ]

    def _admin_pair(self) -> CertificatePair:
        return self._authority.client("admin", ["system:masters"])

    def _write_kubeconfig(self, user: str, pair: CertificatePair) -> None:
        kubeconfig.write_for_client(self.kubeconfig_of(user), self.server, self.authority, pair)
