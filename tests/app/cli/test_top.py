"""`longhorn-extender top` and `waiting`, on the bundled example and on small clusters."""

import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.cli.escaping_console import EscapingConsole
from app.cli.top import print_usage
from app.cli.waiting_and_decisions import print_waiting
from tests import builders as make
from tests.app.cli.test_explain_live import live_cluster, run_in_thread
from tests.builders import GI, Object
from tests.worlds.command_line import Run

NOW = datetime(2026, 11, 24, tzinfo=UTC)

EXAMPLE = str(Path(__file__).parents[3] / "examples/mixed-cluster/snapshot.yaml")
CLASSES = "longhorn, longhorn-image, longhorn-local, longhorn-strict"
HOSTILE = "\x1b[2J\u202e"


def shop(*more: Object | list[Object]) -> list[Object]:
    """Two nodes in two zones, and a pod that waits. They have 100Gi and 20Gi, and the pod waits for 50Gi."""
    waiting = make.pod("data", name="orders-0", namespace="shop")
    waiting["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z"
    claim = make.claim("data", 50)
    claim["metadata"]["namespace"] = "shop"
    nodes = [make.longhorn_node("large", 100, zone="x"), make.longhorn_node("small", 20, zone="y")]
    kube_nodes = [make.kube_node("large"), make.kube_node("small")]
    return make.flat(kube_nodes, nodes, make.storage_class(), claim, waiting, *more)


def test_the_example_begins_with_its_numbers(run: Run) -> None:
    result = run("top", "--snapshot", EXAMPLE)
    lines = result.rows
    assert (result.code, result.err) == (0, "")
    assert lines[:3] == [
        "11 nodes with 16 disks; 3 closed",
        "2 pods wait; 1 pod is bound without its volumes",
        f"largest volume that fits: 1657Gi of {CLASSES}; 700Gi of longhorn-v2; 650Gi of longhorn-ssd",
    ]
    assert lines[4:6] == [
        "NODE ZONE STATE DEMAND WRITTEN SCHEDULED PROMISED FREE RESERVED SIZE",
        "east-4 east closed: Longhorn disks are under disk pressure - 620.31Gi 400Gi 0 0 80Gi 800Gi",
    ]
    assert len(lines) == 4 + 1 + 11 + 1


def test_disks_are_shown_one_by_one(run: Run) -> None:
    lines = run("top", "disks", "--snapshot", EXAMPLE, "--limit", "1").rows
    assert lines[4:] == [
        "NODE DISK ZONE STATE WRITTEN SCHEDULED PROMISED FREE RESERVED SIZE",
        "west-3 ssd-0 west disk ssd-0 is being evicted (evictionRequested true) 410.35Gi 600Gi 0 300Gi 100Gi 1000Gi",
        "",
        "15 more; see --limit",
    ]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--zone", "north"], ["north-2", "north-3", "north-1"]),
        (["--zone", "north", "--sort", "name"], ["north-1", "north-2", "north-3"]),
        (["--zone", "north", "--sort", "written", "--limit", "1"], ["north-1"]),
        (
            ["--group-by", "zone", "--sort", "scheduled", "--limit", "5"],
            ["east-2", "east-4", "east-3", "east-1", "north-2"],
        ),
        (["disks", "--sort", "free", "--limit", "4"], ["east-3", "east-2", "west-3"]),
    ],
)
def test_rows_are_selected_and_sorted(run: Run, arguments: list[str], names: list[str]) -> None:
    result = run("top", *arguments, "--snapshot", EXAMPLE, "-o", "name")
    assert (result.code, result.out.splitlines()) == (0, [f"node/{name}" for name in names])


def test_a_zone_has_a_line_with_its_sum(tmp_path: Path, run: Run) -> None:
    lines = run("top", "--snapshot", make.write_list(tmp_path, shop()), "--group-by", "zone").rows
    assert lines[5:9] == [
        "zone x 1 node 0 0 0 100Gi 0 100Gi",
        "large x open - 0 0 0 100Gi 0 100Gi",
        "zone y 1 node 0 0 0 20Gi 0 20Gi",
        "small y open - 0 0 0 20Gi 0 20Gi",
    ]


@pytest.mark.parametrize(("subject", "kind"), [("nodes", "NodeUsageList"), ("disks", "DiskUsageList")])
def test_json_has_bytes(tmp_path: Path, run: Run, subject: str, kind: str) -> None:
    answer = run("top", subject, "--snapshot", make.write_list(tmp_path, shop()), "--zone", "x", "-o", "json").answer
    space = {"maximum": 100 * GI, "reserved": 0, "scheduled": 0, "promised": 0, "free": 100 * GI, "written": 0}
    row: dict[str, Any] = {"node": "large", "zone": "x", "closedBy": "", "space": space}
    row |= {"condition": "open", "demand": 0, "disks": 1} if subject == "nodes" else {"disk": "disk-1"}
    assert answer == {
        "apiVersion": "longhorn-extender/v1",
        "kind": kind,
        "summary": {
            "nodes": 2,
            "disks": 2,
            "notReady": 0,
            "overLimit": 0,
            "closed": 0,
            "waiting": 1,
            "boundWithoutVolumes": 0,
            "misplaced": 0,
            "largestVolumes": {"longhorn": 100 * GI},
        },
        "zones": [{"zone": "x", "nodes": 1, "space": space}],
        "count": 1,
        "items": [row],
    }


async def test_a_live_cluster_is_read(tmp_path: Path, run: Run) -> None:
    file = make.write_list(tmp_path, shop())
    async with live_cluster(tmp_path, shop()) as kubeconfig:
        live = [
            await run_in_thread(run, command, "--kubeconfig", kubeconfig, "-o", "json")
            for command in ("top", "waiting")
        ]
    for command, result in zip(("top", "waiting"), live, strict=True):
        written = await run_in_thread(run, command, "--snapshot", file, "-o", "json")
        assert (result.code, result.out, result.err) == (written.code, written.out, "")


def test_an_empty_cluster_has_no_rows(tmp_path: Path, run: Run) -> None:
    file = make.write_list(tmp_path, make.kube_node("n"))
    result = run("top", "--snapshot", file)
    assert (result.code, result.rows) == (
        0,
        [
            "no nodes with no disks",
            "no pods wait",
            "there is no StorageClass of Longhorn",
            "",
            "there is no Longhorn node",
        ],
    )
    assert "there is no disk" in run("top", "disks", "--snapshot", file).out


def test_trouble_is_counted(tmp_path: Path, run: Run) -> None:
    volume = [
        make.claim("x", 10, bound=True),
        make.persistent_volume("x", uid="uid-x"),
        make.volume("vol-x", 10),
        make.replica("r", "vol-x", "small", size=10, healthy=False),
        make.pod("x", name="p", node="large"),
    ]
    nodes = [
        make.longhorn_node("down", ready=False),
        make.longhorn_node("shut", allow=False),
        make.longhorn_node("over", {"disk-1": make.disk(10, scheduled=11)}),
    ]
    lines = run("top", "--snapshot", make.write_list(tmp_path, shop(volume, nodes))).rows
    assert lines[0] == "5 nodes with 5 disks; 1 not ready; 1 over the limit; 1 closed"
    assert lines[1] == "1 pod waits; 1 pod is bound without its volumes; 1 volume is misplaced"
    assert [line.split()[0] for line in lines[5:10]] == ["down", "over", "shut", "small", "large"]
    assert lines[6] == "over - over limit: insufficient Longhorn storage - 0 11Gi 0 0 0 10Gi"


@pytest.mark.parametrize("command", ["top", "waiting"])
def test_standard_input_cannot_be_watched(run: Run, command: str) -> None:
    result = run(command, "--snapshot", "-", "--watch", stdin=b"{}")
    assert (result.code, result.err) == (
        2,
        "longhorn-extender: standard input (-) can be read only once; --watch reads again and again\n",
    )


def usage(sizes: tuple[int, int, int, int, int], name: str = "n") -> Object:
    """A list with one disk."""
    counts = ("notReady", "overLimit", "closed", "waiting", "boundWithoutVolumes", "misplaced")
    summary = {"nodes": 1, "disks": 1, **dict.fromkeys(counts, 0), "largestVolumes": {name: GI}}
    space = dict(zip(("maximum", "reserved", "scheduled", "promised", "free"), sizes, strict=True))
    item = {"node": name, "disk": name, "zone": name, "closedBy": "", "space": {**space, "written": 0}}
    return {"kind": "DiskUsageList", "summary": summary, "zones": [], "count": 1, "items": [item]}


def on_terminal(answer: Object, width: int) -> list[str]:
    """What a terminal of a width shows, without colours."""
    text = io.StringIO()
    console = EscapingConsole(file=text, width=width, force_terminal=True, color_system=None)
    print_usage(answer, console, grouped=False)
    return text.getvalue().splitlines()


@pytest.mark.parametrize(
    ("sizes", "bar"),
    [
        pytest.param((100, 10, 20, 30, 40), "████████████▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓░░░░░░░░░░░░░░░░░░░░░░░░------", id="parts"),
        pytest.param((100, 0, 0, 0, 0), "", id="empty"),
        pytest.param((100, 0, 200, 0, -100), "█" * 60, id="over the limit"),
    ],
)
def test_a_bar_shows_shares_of_the_size(sizes: tuple[int, int, int, int, int], bar: str) -> None:
    maximum, reserved, scheduled, promised, free = (size * GI for size in sizes)
    lines = on_terminal(usage((maximum, reserved, scheduled, promised, free)), 200)
    (line,) = [line for line in lines if line.startswith("n ")]
    assert line[line.rindex("Gi") + 2 :].strip() == bar


@pytest.mark.parametrize("width", range(20, 200, 12))
def test_a_bar_takes_the_width_that_is_left(width: int) -> None:
    lines = on_terminal(usage((GI, 0, GI, 0, 0)), width)
    table = [line for line in lines if line.startswith(("NODE", "n "))]
    assert max(map(len, table)) <= max(width, 75)
    assert ("█" in lines[-1]) is ("USAGE" in table[0])


def test_names_do_not_change_the_terminal(tmp_path: Path, run: Run) -> None:
    texts = dict.fromkeys(("pod", "since", "error"), HOSTILE)
    row = {**texts, "size": 0, "nodes": 1, "fits": 0, "reasons": {HOSTILE: 1}, "closest": None, "remedy": None}
    text = io.StringIO()
    print_waiting({"count": 1, "items": [row]}, EscapingConsole(file=text, width=200), NOW)
    for output in ("\n".join(on_terminal(usage((GI, 0, 0, 0, 0), HOSTILE), 200)), text.getvalue()):
        assert not {"\x1b", "\u202e"} & set(output)
        assert r"\x1b[2J\u202e" in output


def test_no_pod_waits(tmp_path: Path, run: Run) -> None:
    result = run("waiting", "--snapshot", make.write_list(tmp_path, make.longhorn_node("n")))
    assert (result.code, result.out, result.err) == (0, "no pod with claims waits for a node\n", "")


def test_a_waiting_pod_has_its_age_reasons_and_a_closest_node(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.cli.options.now", lambda: NOW)
    claim = make.claim("big", 120)
    result = run("waiting", "--snapshot", make.write_list(tmp_path, shop(claim, make.pod("big", name="big"))))
    assert (result.code, result.err) == (1, "")
    assert result.rows == [
        "POD SINCE AGE SIZE FITS WHY CLOSEST NODE REMEDY",
        "shop/orders-0 2026-01-02T03:04:05Z 325 d 50Gi 1 of 2 fits now; kube-scheduler has not tried again - -",
        "default/big - - 120Gi 0 of 2 insufficient Longhorn storage (2) large: lacks 20Gi grow disk large/disk-1 by 20Gi",
    ]


def test_remedies_are_sought_for_some_pods(tmp_path: Path, run: Run) -> None:
    big = [[make.claim(f"big-{number}", 120), make.pod(f"big-{number}", name=f"big-{number}")] for number in range(3)]
    file = make.write_list(tmp_path, shop(*big))
    for count in range(4):
        answer = run("waiting", "--snapshot", file, "--remedies", str(count), "-o", "json").answer
        remedies = {entry["pod"]: entry["remedy"] and entry["remedy"]["text"] for entry in answer["items"]}
        assert remedies.pop("shop/orders-0") is None
        assert [bool(text) for text in remedies.values()] == [number < count for number in range(3)]


def test_a_node_that_kube_scheduler_refuses_is_not_the_closest(tmp_path: Path, run: Run) -> None:
    objects = shop(make.claim("big", 120), make.pod("big", name="big"))
    for raw in objects:
        if raw["kind"] == "Node" and raw["metadata"]["name"] == "large" and raw["apiVersion"] == "v1":
            raw["spec"] = {"unschedulable": True}
    answer = run("waiting", "--snapshot", make.write_list(tmp_path, objects), "-n", "default", "-o", "json").answer
    (pod,) = answer["items"]
    assert pod["reasons"] == {"insufficient Longhorn storage": 1, "node is unschedulable": 1}
    assert (pod["closest"]["node"], pod["closest"]["missing"]) == ("small", 100 * GI)


def test_a_pod_that_cannot_be_decided_about_says_why(tmp_path: Path, run: Run) -> None:
    result = run(
        "waiting", "--snapshot", make.write_list(tmp_path, shop(make.pod("absent", name="lost"))), "-o", "json"
    )
    answer = result.answer
    assert (answer["apiVersion"], answer["kind"], answer["count"]) == ("longhorn-extender/v1", "WaitingPodList", 2)
    assert {entry["pod"]: "absent" in entry["error"] for entry in answer["items"]} == {
        "shop/orders-0": False,
        "default/lost": True,
    }


@pytest.mark.parametrize(
    ("arguments", "code", "names"),
    [
        ([], 1, ["pod/returns-0", "pod/orders-0"]),
        (["--limit", "1"], 1, ["pod/returns-0"]),
        (["-n", "shop"], 1, ["pod/returns-0", "pod/orders-0"]),
        (["-n", "none"], 0, []),
    ],
)
def test_waiting_pods_are_selected(run: Run, arguments: list[str], code: int, names: list[str]) -> None:
    result = run("waiting", "--snapshot", EXAMPLE, "-o", "name", *arguments)
    assert (result.code, result.out.splitlines()) == (code, names)


def test_waiting_agrees_with_explain(run: Run) -> None:
    pods = run("waiting", "--snapshot", EXAMPLE, "-o", "json").answer["items"]
    for entry in pods:
        nodes = run("explain", entry["pod"], "--snapshot", EXAMPLE, "-o", "json").answer["nodes"].values()
        assert entry["fits"] == sum(node["fits"] for node in nodes)
        assert entry["nodes"] == len(nodes)
