"""Why a volume's next replica can or cannot be placed: `longhorn-extender explain --volume`, as JSON and as a table of it."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from app.cli.render import NO, YES, Cell, Console
from app.schemas.decision import replica_answer
from scheduler_core.cluster.view import View
from scheduler_core.errors import CoreError
from scheduler_core.longhorn import anti_affinity, new_volume_placement, space
from scheduler_core.longhorn.refusal_rules import DISK_RULES, NODE_RULES, Refusal, Rule
from scheduler_core.model.longhorn import Volume
from scheduler_core.model.quantity import format_bytes, format_count

_SPACE_RULES = (Rule.ACTUAL_SPACE, Rule.SCHEDULING_SPACE)


def explain_volume(view: View, name: str, nodes: Collection[str] | None = None) -> dict[str, Any]:
    """Explains where a volume's next replica may go: an unplaced one, or else one more. `nodes` limits the answer to
    these nodes, not the decision. Raises a CoreError if there is no such volume, or it has no replicas.
    """
    volume = view.snapshot.volumes.get(name)
    if volume is None:
        examples = ", ".join(sorted(view.snapshot.volumes)[:5]) or "none"
        raise CoreError(f"there is no volumes.longhorn.io {name} in the snapshot; there are {examples}, ...")
    if volume.has_shards:
        raise CoreError(f"volume {name} is sharded: it has shards (kubectl get shards.longhorn.io) and no replicas")
    next_replica = new_volume_placement.explain_next_replica(view.cluster, volume)
    explanation = next_replica.explanation
    chosen = {choice.candidate.disk_uuid: choice.reason.text for choice in next_replica.choices}
    return {
        "volume": name,
        "size": volume.size,
        "actualSize": volume.actual_size,
        "numberOfReplicas": volume.number_of_replicas,
        "dataLocality": volume.data_locality,
        "replicas": [replica_answer(replica, view.snapshot.longhorn_nodes) for replica in view.replicas_of(name)],
        # The unplaced replica that is asked about; "": one more.
        "nextReplica": next_replica.replica.name if next_replica.replica else "",
        # Longhorn places local data only once it is attached.
        "waitsForAttachment": new_volume_placement.waits_for_attachment(volume),
        # `chosen` is why Longhorn may choose a disk, "" if it would not.
        "candidates": [
            {
                "node": entry.node.name,
                "disk": entry.disk.name,
                "uuid": entry.disk_uuid,
                "chosen": chosen.get(entry.disk_uuid, ""),
            }
            for entry in explanation.candidates.disks
        ],
        # What Longhorn itself would report without a candidate; often nothing.
        "reasons": sorted(str(reason) for reason in explanation.candidates.reasons),
        "nodes": {
            entry.node.name: {
                # In which it was tried; "" if it was not.
                "tier": entry.tier.value if isinstance(entry.tier, anti_affinity.Tier) else "",
                "rules": _rules(NODE_RULES, entry.refusal or explanation.refusal),
                "disks": {disk.disk.name: _disk(view, volume, entry, disk) for disk in entry.disks},
            }
            for entry in explanation.nodes
            if not nodes or entry.node.name in nodes
        },
    }


def _disk(
    view: View, volume: Volume, node: new_volume_placement.NodeExplanation, entry: new_volume_placement.DiskExplanation
) -> dict[str, Any]:
    numbers = {rule: space.space_detail(rule, entry.disk, view.settings, entry.space, volume) for rule in _SPACE_RULES}
    return {
        "uuid": entry.disk.uuid,
        "candidate": entry.refusal is None and node.refusal is None,
        # What may still be scheduled: size <= free; what may still be written: actual size < headroom.
        "free": entry.space.free,
        "headroom": entry.space.headroom,
        "rules": _rules(DISK_RULES, entry.refusal, numbers),
    }


def _rules(order: Sequence[Rule], refusal: Refusal | None, numbers: Mapping[Rule, str] = {}) -> list[dict[str, Any]]:
    """Returns the rules in Longhorn's order, up to the one that refuses; one that is not in `order` was checked before
    all of them. `numbers` are the details of rules that pass.
    """
    failed = refusal.rule if refusal is not None else None
    reached = order[: order.index(failed)] if failed in order else order if failed is None else []
    rules = [{"rule": rule.text, "passed": True, "detail": numbers.get(rule, "")} for rule in reached]
    refused = [{"rule": refusal.rule.text, "passed": False, "detail": refusal.detail}] if refusal is not None else []
    return rules + refused


def print_volume(answer: dict[str, Any], console: Console) -> None:
    """Prints the replicas, the candidates, and every node and disk with the rule that decided and its numbers."""
    console.write(f"volume {answer['volume']}", "bold")
    sizes = f"{format_bytes(answer['size'])}, {format_bytes(answer['actualSize'])} written"
    wanted = f"replicas wanted: {answer['numberOfReplicas']}, data locality {answer['dataLocality']}"
    console.paragraph(f"{sizes}, {wanted}")
    for replica in answer["replicas"]:
        state = "failed" if replica.failed else "healthy" if replica.healthy else "not healthy yet"
        console.paragraph(f"replica {replica.name}: {f'{replica.node}, {state}' if replica.node else 'no node yet'}")
    asked = f"replica {answer['nextReplica']}" if answer["nextReplica"] else "one more replica"
    console.paragraph(f"asked about: {asked}")
    if answer["waitsForAttachment"]:
        console.paragraph("Longhorn places it only once the volume is attached, on that node first")
    console.print()
    console.print(console.table_of(("NODE", "DISK", "CANDIDATE", "RULE", "NUMBERS"), _rows(answer["nodes"])))
    console.print()
    console.write(format_count(len(answer["candidates"]), "candidate disk"), "bold")
    for entry in answer["candidates"]:
        reason = f": {entry['chosen']}" if entry["chosen"] else ", but Longhorn would choose another"
        console.write(f"  {entry['node']} {entry['disk']}{reason}")
    if not answer["candidates"]:
        reported = "; ".join(answer["reasons"]) or "nothing: the rules above are silent in Longhorn"
        console.write(f"  Longhorn itself reports {reported}")


def _rows(nodes: Mapping[str, dict[str, Any]]) -> Iterator[Sequence[Cell]]:
    for name, node in nodes.items():
        refusal = _failure(node["rules"])
        if refusal is not None:
            yield name, "", NO, refusal["rule"], refusal["detail"]
        elif not node["disks"]:
            yield name, "", NO, "node has no disks", ""
        for disk_name, disk in node["disks"].items() if refusal is None else ():
            failed = _failure(disk["rules"])
            numbers = "; ".join(rule["detail"] for rule in disk["rules"] if rule["detail"])
            rule, detail = (failed["rule"], failed["detail"]) if failed is not None else (node["tier"], numbers)
            yield name, disk_name, YES if disk["candidate"] else NO, rule, detail


def _failure(rules: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    return next((rule for rule in rules if not rule["passed"]), None)
