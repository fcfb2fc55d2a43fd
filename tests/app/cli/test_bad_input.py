"""What every command says of input that it cannot use: one line, exit code 2, and no output."""

import shlex
from pathlib import Path

import pytest

from tests.builders import pod, write_list
from tests.worlds.command_line import Run
from tests.worlds.predicted_clusters import growing_class, node, running

CLUSTER = "examples/policies/cluster.yaml"
PROGRAM = "longhorn-extender: "
MISSING = "the name of a pod is missing; see --help"
_WATCH = ("schedule", "--watch", "--scheduler-name", "x")
_DISKS = ("disk-schedule", "--port", "0")
_POLICY = ("schedule", "--snapshot", CLUSTER, "--policy", "examples/policies/default.json")
_URL = ("decisions", "--url", "http://127.0.0.1:1")
_TLS = ("decisions", "--url", "https://a")
# Of a snapshot with the nodes a and b and the pod db-0.
PREDICTIONS = (
    ("what-if --drain x", "there is no node x"),
    ("what-if --drain ,", "--drain: the name of a node is missing"),
    ("what-if --lose region=x", "--lose region=x: expected NODE, NODE/DISK or zone=NAME"),
    ("what-if --lose a/x", "there is no Longhorn disk a/x"),
    ("what-if --scale db=3", "--scale db=3: expected sts/NAME=N, deploy/NAME=N or rs/NAME=N"),
    ("what-if --scale sts/db=many", "--scale sts/db=many: expected a number from 0 to 10000"),
    ("what-if --scale sts/x=1", "has no StatefulSet default/x"),
    ("what-if --set x", "--set x: expected SETTING=VALUE"),
    ("what-if --set x=1", "x is no Longhorn setting that decisions read"),
    ("what-if --set node-drain-policy=sometimes", "'sometimes' is not one of block-for-eviction, "),
    ("what-if --set storage-over-provisioning-percentage=-5", "'-5' is not a whole number of at least 0"),
    ("what-if --expand data-db-0=much", "--expand data-db-0=much: "),
    ("what-if --expand data-db-0=1Gi", "PersistentVolumeClaim default/data-db-0: a volume cannot shrink"),
    ("what-if --add-disk a=0", "--add-disk a=0: must be positive"),
    ("what-if --add-node size=3", "--add-node size=3: expected like=NODE, count=N and disks=SIZE,SIZE"),
    ("what-if --apply missing.yaml", "missing.yaml: cannot be read"),
    ("what-if --apply BOUND", "Pod default/fixed: spec.nodeName is set, so that no scheduler decides about it"),
    ("what-if --rebuild-rate 0", "--rebuild-rate: must be positive"),
    ("what-if --orders 0", "--orders"),
    ("headroom nothing", "nothing"),
    ("headroom sts/", "the name of a pod or workload is missing"),
    ("headroom sts/absent", "has no StatefulSet default/absent"),
    ("headroom db-0 --at-least 5 --limit 4", "--at-least 5: is more than --limit 4"),
    ("headroom db-0 --limit 0", "--limit"),
    ("maintenance absent", "there is no node absent"),
    ("maintenance --rebuild-rate fast", "--rebuild-rate"),
    ("maintenance --tries 0", "--tries"),
    ("rebalance --goal balance", "--goal balance: expected largest-volume"),
    ("rebalance --goal largest-volume=", "--goal largest-volume=: expected"),
    ("rebalance --goal largest-volume=gold", "there is no StorageClass gold of Longhorn"),
    ("rebalance --size much", "--size: "),
    ("rebalance --size 0", "--size: must be positive"),
    ("rebalance --goal waiting-pods --size 1Gi", "--size is for --goal largest-volume"),
    ("remedies other", "other"),
    ("remedies claimless", "PersistentVolumeClaim default/missing does not exist"),
    ("remedies db-0 --limit 0", "--limit"),
    ("remedies", "POD"),
    ("explain db-0 -n other", "nor such a pod in namespace other"),
    ("explain default/db-0 -n other", "contradicts --namespace other"),
    ("explain pod/", MISSING),
    ("explain ''", MISSING),
    ("explain --claim default/data-db-0 -n other", "contradicts --namespace other"),
    ("explain deploy/web -n shop", "has no Deployment shop/web"),
    ("explain --claim shop/log", "there is no PersistentVolumeClaim shop/log"),
    ("explain --volume w", "there is no volumes.longhorn.io w"),
    ("explain --pod p --volume v", "one of a pod, --claim and --volume"),
    ("explain p --claim c", "one of a pod, --claim and --volume"),
    ("explain -o xml", "'--output'"),
    ("explain y z", "extra argument"),
    ("top --zone mars", f"{PROGRAM}--zone 'mars': no Longhorn node is in it\n"),
    ("top --watch", f"{PROGRAM}--watch needs a terminal; leave it out, or repeat the command\n"),
    ("waiting --watch -o yaml", f"{PROGRAM}--watch shows a table; it cannot be combined with --output\n"),
)
OTHERS = (
    (("explain", "--kubeconfig", "none"), "there is no file none"),
    (("explain", "--pods"), "No such option: --pods"),
    (("nothing",), "No such command 'nothing'"),
    (("serve", "--snapshot", "x", "--port", "http"), "'--port'"),
    (("serve", "--snapshot", "x", "--port", "65536"), "'--port'"),
    (("serve", "--snapshot", "x", "--max-body", "lots"), "--max-body: 'lots'"),
    (("serve", "--snapshot", "x", "--max-body", "0"), "--max-body: must be positive"),
    (("serve", "--snapshot", "x", "--log-level", "all"), "--log-level all"),
    (("serve", "--snapshot", "x", "--log-format", "xml"), "'--log-format'"),
    (("serve", "--snapshot", "/nowhere"), "/nowhere: cannot be read"),
    (("serve", "--alone"), "--alone needs --snapshot"),
    (("schedule",), "either --snapshot or --watch"),
    (("schedule", "--snapshot", CLUSTER, "--watch"), "either --snapshot or --watch"),
    (("schedule", "--watch"), "needs --scheduler-name"),
    (("schedule", "--snapshot", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
    (("schedule", "--snapshot", CLUSTER, "--policy", "nowhere"), "nowhere: cannot be read"),
    (("schedule", "--snapshot", CLUSTER, "--policy", CLUSTER), "cluster.yaml: policy: is not JSON"),
    *(
        ((*_WATCH, "--lease-name", name), f"--lease-name {name!r}: ")
        for name in ("Upper", "under_score", "-begins", "ends.", "a" * 254)
    ),
    ((*_WATCH, "--log-level", "loud"), "--log-level loud: expected one of"),
    ((*_WATCH, "--kubeconfig", "nowhere"), "no cluster to talk to"),
    ((*_URL, "a/b", "-n", "c"), f"{PROGRAM}a/b: contradicts --namespace c\n"),
    ((*_URL, "pod/"), f"{PROGRAM}'pod/': {MISSING}\n"),
    ((*_URL, ""), f"{PROGRAM}'': {MISSING}\n"),
    ((*_URL, "--watch"), f"{PROGRAM}--watch needs a terminal; leave it out, or repeat the command\n"),
    ((*_URL, "--watch", "-o", "json"), f"{PROGRAM}--watch shows a table; it cannot be combined with --output\n"),
    (("decisions", "--url", "10.0.0.1:9504"), f"{PROGRAM}--url 10.0.0.1:9504: expected http://HOST:PORT\n"),
    (
        (*_URL, "--ca-file", "ca.crt"),
        f"{PROGRAM}--ca-file, --cert-file, --key-file and --server-name need --url https://HOST:PORT\n",
    ),
    ((*_TLS, "--cert-file", "tls.crt"), f"{PROGRAM}--cert-file and --key-file go together\n"),
    ((*_TLS, "--ca-file", "none"), f"{PROGRAM}--ca-file none: cannot be read: No such file or directory\n"),
    ((*_URL, "--limit", "0"), f"{PROGRAM}Invalid value for '--limit': expected at least 1; see --help\n"),
    ((*_DISKS, "--kubeconfig", "/nowhere"), "no cluster to talk to: there is no file /nowhere"),
    ((*_DISKS, "--renew-deadline", "20"), "leader election: expected 60 >= lease duration > renew deadline"),
    ((*_DISKS, "--log-level", "loud"), "--log-level loud: expected one of debug"),
    ((*_DISKS, "--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid port 0"),
    ((*_DISKS, "--mirrored"), "No such option"),
    ((*_POLICY, "--plugin", "no.such"), "plugin no.such: cannot be loaded: ModuleNotFoundError"),
    (("doctor", "--kubeconfig", "/no/such/file"), "/no/such/file"),
    (("doctor", "--url", "10.0.0.1"), "--url 10.0.0.1"),
    (("doctor", "--probe-timeout", "0"), "--probe-timeout"),
    (("scheduler-config", "--platform", "talos", "--url-prefix", "https://10.43.0.9:9504"), "with TLS"),
    (("scheduler-config", "--platform", "talos", "--merge", "config.yaml"), "--merge: Talos keeps"),
    (("scheduler-config", "--platform", "openshift"), "'--platform'"),
    (("scheduler-config",), "'--platform'"),
    (("scheduler-config", "--platform", "k3s", "--url-prefix", "10.43.0.9"), "expected http://HOST:PORT"),
    (("scheduler-config", "--platform", "k3s", "--url-prefix", "http://host:port"), "expected http://HOST:PORT"),
    (("scheduler-config", "--platform", "k3s", "--url-prefix", "http://10.0.0.1:1", "--tls"), "begins with https://"),
    (("scheduler-config", "--platform", "k3s", "--kubeconfig", "/no/such/file"), "/no/such/file"),
    (("top", "--interval", "x"), f"{PROGRAM}Invalid value for '--interval': expected a number"),
    (("top", "--interval", "0"), f"{PROGRAM}Invalid value for '--interval': expected at least 0.5"),
    (("top", "--sort", "x"), f"{PROGRAM}Invalid value for '--sort': 'x' is not one of 'worst', "),
    (("what-if", "--orders", "1.5"), f"{PROGRAM}Invalid value for '--orders': expected a whole number"),
    (
        ("serve", "--port", "65536"),
        f"{PROGRAM}Invalid value for '--port' (env var: 'LONGHORN_EXTENDER_PORT'): expected at most 65535",
    ),
)


def assert_refused(run: Run, arguments: tuple[str, ...], problem: str) -> None:
    result = run(*arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(PROGRAM)
    assert problem in result.err


@pytest.mark.parametrize(("command", "problem"), PREDICTIONS)
def test_a_question_that_cannot_be_answered_is_one_line(run: Run, tmp_path: Path, command: str, problem: str) -> None:
    objects = (growing_class(), node("a", listed={"db-0-a": 30}), node("b"), running("db-0", "a"))
    cluster = write_list(tmp_path / "snapshot.json", *objects, pod("missing", name="claimless"))
    bound = write_list(tmp_path / "pod.json", pod(name="fixed", node="b"))
    assert_refused(run, (*shlex.split(command.replace("BOUND", bound)), "--snapshot", cluster), problem)


@pytest.mark.parametrize(("arguments", "problem"), OTHERS, ids=[" ".join(arguments)[:60] for arguments, _ in OTHERS])
def test_bad_input_is_one_line(run: Run, arguments: tuple[str, ...], problem: str) -> None:
    assert_refused(run, arguments, problem)
