"""`explain_nodes`: the decision of `filter_nodes` with a plan for each node that fits, and with what is missing on each
that does not. It does not question the decision.
"""

from collections.abc import Mapping, Sequence

from scheduler_core.cluster.view import View
from scheduler_core.decide import volume_sentences
from scheduler_core.decide.decision import NO_CONTENDERS, Contenders, Decision, FilterOptions
from scheduler_core.decide.filter import filter_nodes
from scheduler_core.evaluation import fit, replicas_to_place, single_node
from scheduler_core.evaluation.cluster_state import ClusterState
from scheduler_core.evaluation.competing_volumes import Volumes
from scheduler_core.evaluation.disk_profiles import refusal_on_every_node, unready_volume
from scheduler_core.model import kube, longhorn
from scheduler_core.model.quantity import MAX_LISTED, format_bytes, format_count, join_first
from scheduler_core.model.verdict import UNSAFE, CompetingVolume, Meeting, Reason, Verdict
from scheduler_core.packing import feasible, order_safe
from scheduler_core.packing.budget import Budget, PackingAnswer, give_way
from scheduler_core.structs import Struct, replace
from scheduler_core.volumes.resolve import MAX_VOLUMES_PER_NODE, PodVolume, Resolution

# Plans and missing bytes take longer than the decision, and kube-scheduler does not wait for them.
EXPLAIN_STEPS_FACTOR = 4
# The volumes that need space on the node fit, but maybe not together with these replicas.
_OPEN_DECISION = "it is undecided whether these replicas find room together: "
# With these it is proven that there is no packing. With others there may be one: volumes that wait may only be order-unsafe.
_LACKING_SPACE = frozenset({Reason.INSUFFICIENT_STORAGE, Reason.NOT_TOGETHER, Reason.SPOKEN_FOR})


class Explanation(Struct, frozen=True):
    """A decision with one verdict per candidate, in the order of the request."""

    decision: Decision
    verdicts: Sequence[Verdict]
    skipped: Sequence[volume_sentences.SkippedClaim]  # the pod's claims that are no Longhorn volumes
    longhorn_nodes: Mapping[str, longhorn.Node]  # those of the cluster, by name, for the names of disks


class _Node(Struct, frozen=True):
    view: View
    resolution: Resolution
    name: str
    reason: Reason
    sentences: volume_sentences.VolumeSentences  # about the pod's volumes
    competitors: Volumes  # the volumes of other pods that were counted
    left_out: Volumes  # those that do not fit there and matter to stale safety alone (`Competitors.left_out`)
    optional: replicas_to_place.Optional  # the pod's volumes without data locality that Longhorn may place there
    budget: Budget
    options: FilterOptions  # those of the decision


def explain_nodes(
    pod: kube.Pod,
    candidates: Sequence[str],
    state: ClusterState,
    options: FilterOptions,
    contenders: Contenders = NO_CONTENDERS,
) -> Explanation:
    """Decides as `filter_nodes` does, with a verdict per candidate: a plan, or what is missing, and the volumes of
    other pods that count.
    """
    decision = filter_nodes(pod, candidates, state, options, contenders)
    return explain_part(pod, decision, candidates, state, options)


def explain_part(
    pod: kube.Pod, decision: Decision, names: Sequence[str], state: ClusterState, options: FilterOptions
) -> Explanation:
    """Explains a decision that was made with this state and these options, on those candidates that are in `names`, in their order."""
    # The reasons stay those of the whole decision.
    reasons = dict(zip(decision.candidates, decision.reasons, strict=True))
    candidates = [name for name in names if name in reasons]
    decision = replace(decision, candidates=candidates, reasons=[reasons[name] for name in candidates])
    verdicts = []
    details_of_cluster: dict[tuple[str, ...], str] = {}
    # By identity, because nodes with equal volumes share them, and comparing them would take time for each node.
    sentences: dict[int, volume_sentences.VolumeSentences] = {}
    # The same volume may compete on every node.
    competing: dict[int, CompetingVolume] = {}
    optional: dict[int, replicas_to_place.OptionalVolumes] = {}
    shares = Budget(EXPLAIN_STEPS_FACTOR * options.steps).shares(len(candidates))
    # One node never takes more than a decision may.
    shares = [share.portion(options.steps) for share in shares]
    for name, reason, share in zip(candidates, decision.reasons, shares, strict=True):
        give_way()
        competitors = decision.competitors.get(name)
        volumes = competitors.volumes if competitors else ()
        left_out = competitors.left_out if competitors else ()
        resolution = decision.resolution_on(name)
        if reason is Reason.NO_ROOM_IN_CLUSTER or reason is Reason.TOO_FEW_NODES:
            verdicts.append(Verdict(reason, _detail_of_cluster(reason, resolution, state, details_of_cluster)))
            continue
        if reason is Reason.UNCERTAIN_VOLUME or reason is Reason.HOME_ELSEWHERE:
            # What these reasons mean shows only from all volumes that the pod may have.
            resolution = decision.resolution
        about_volumes = sentences.setdefault(id(resolution), volume_sentences.VolumeSentences(state.view, resolution))
        if id(resolution) not in optional:
            optional[id(resolution)] = replicas_to_place.optional_volumes(state.view, resolution)
        own = optional[id(resolution)].on(name)
        node = _Node(state.view, resolution, name, reason, about_volumes, volumes, left_out, own, share, options)
        verdict = _explain_node(node)
        if volumes:
            competing.update(
                (id(entry), _competing(entry, state.view)) for entry in volumes if id(entry) not in competing
            )
            largest_first = sorted(
                (competing[id(entry)] for entry in volumes), key=lambda each: (-each.size, each.pod, each.volume)
            )
            verdict = replace(verdict, competing=tuple(largest_first))
        verdicts.append(verdict)
    skipped = volume_sentences.skipped_claims(pod, state.view, decision.resolution)
    return Explanation(decision, verdicts, skipped, state.view.snapshot.longhorn_nodes)


def _detail_of_cluster(
    reason: Reason, resolution: Resolution, state: ClusterState, details: dict[tuple[str, ...], str]
) -> str:
    volumes = [volume.name for volume in resolution.unplaced]
    # Making the sentence takes a look at every disk of the cluster, so it is made once.
    key = (reason.name, *volumes, *(volume.claim for volume in resolution.volumes))
    if key not in details and reason is Reason.NO_ROOM_IN_CLUSTER:
        details[key] = _no_room_in_cluster(state.view, resolution)
    elif key not in details:
        shortage = replicas_to_place.domain_shortage(state, replicas_to_place.replica_needs(resolution, state.view))
        details[key] = shortage.sentence if shortage is not None else ""
    return details[key]


def _competing(volume: PodVolume, view: View) -> CompetingVolume:
    namespace, _, claim = volume.claim.partition("/")
    pods = [pod.key for pod in view.pods_of(namespace, claim) if pod.live]
    return CompetingVolume(min(pods, default=""), volume.claim, volume.name, volume.volume.size)


def _explain_node(node: _Node) -> Verdict:
    reason = node.reason
    if reason is Reason.NO_VOLUMES:
        return Verdict(reason, order_safe=True, stale_safe=True)
    if reason is Reason.TOO_MANY_VOLUMES:
        return Verdict(reason, f"a node attaches at most {MAX_VOLUMES_PER_NODE} volumes")
    if reason is Reason.HOME:
        return Verdict(reason, node.sentences.kept_replicas(node.name), order_safe=True, stale_safe=True)
    if reason is Reason.CLAIM_IN_USE:
        return Verdict(reason, node.sentences.claims_in_use)
    if reason in (Reason.HOME_ELSEWHERE, Reason.STRICT_LOCAL_ELSEWHERE):
        return Verdict(reason, node.sentences.replicas_elsewhere)
    if reason is Reason.UNCERTAIN_VOLUME:
        return Verdict(reason, _uncertain_volumes(node))
    if reason is Reason.NOT_TOGETHER_IN_CLUSTER:
        return Verdict(reason, f"these replicas find no room together: {node.sentences.needs(node.name)}")
    for refused in (unready_volume(node.view, node.resolution), refusal_on_every_node(node.view, node.resolution)):
        if refused is not None and refused.reason is reason:
            return Verdict(reason, refused.detail)
    evaluation = single_node.evaluate_node(node.view, node.resolution, node.name, node.competitors, node.optional)
    if evaluation.refused is not None:
        return Verdict(
            reason, single_node.refusal_detail(node.view, evaluation.required, node.name) or evaluation.refused.detail
        )
    if reason is Reason.UNDECIDED and not evaluation.required.sizes:
        return Verdict(node.reason, _OPEN_DECISION + node.sentences.needs(node.name))
    if reason.fits or reason in UNSAFE or reason is Reason.NEVER_SAFE:
        return _explain_fitting(node, evaluation)
    verdict = _explain_shortage(node, evaluation)
    own = [volume for volume in evaluation.required.volumes if volume.claim not in evaluation.competing_claims]
    closed = single_node.closed_disks(node.view, own, node.name)
    return replace(verdict, detail=f"{verdict.detail}; {closed}") if closed else verdict


def _explain_fitting(node: _Node, evaluation: single_node.NodeEvaluation) -> Verdict:
    # The verdict has the plan, and whether every placement order succeeds, also on outdated status.
    portion = node.budget.portion(feasible.MAX_STEPS_PER_INSTANCE)
    plan = evaluation.plan(portion)
    node.budget.take_back([portion])
    stale_safe, meeting = _stale_safety(node, evaluation)
    safety = order_safe.Safety(PackingAnswer.YES) if stale_safe else evaluation.order_safety(node.budget)
    labels = _labels(node, evaluation)
    volumes = (*evaluation.required.volumes, *evaluation.required.optional_replicas)
    placed = [(volumes[volume].name, disk) for volume, disk in safety.counter_example]
    parts = [node.sentences.kept_replicas(node.name)]
    if placed:
        # The last volume has no disk.
        steps = [f"{volume} on disk {labels[disk]}" for volume, disk in placed if disk is not None]
        parts.append(f"unlucky order: {join_first(steps, ', ')}, then no disk is left for {placed[-1][0]}")
    elif meeting is not None:
        names = join_first(meeting.volumes, ", ")
        parts.append(f"on outdated status all of these may go to disk {_disk_names(node)[meeting.disk]}: {names}")
    if plan is None:
        parts.append("a packing exists, but the budget did not suffice to write it out")
    if safety.answer is PackingAnswer.UNDECIDED:
        parts.append("not proven to fit in every order")
    if node.options.guarded and not stale_safe:
        parts.append("the placement guard keeps Longhorn to a plan like this one")
    if node.reason is Reason.NEVER_SAFE:
        alone = single_node.evaluate_node(node.view, node.resolution, node.name, (), node.optional)
        parts.append(
            volume_sentences.never_offered(
                node.options.packing,
                fit.missing_bytes(alone.required, alone.profile, alone.allowed),
                _labels(node, alone),
            )
        )
    return Verdict(
        node.reason,
        "; ".join(part for part in parts if part),
        plan or {},
        order_safe=safety.answer is PackingAnswer.YES,
        stale_safe=stale_safe,
        meeting=meeting,
        counter_example=tuple((volume, "" if disk is None else evaluation.disks[disk].uuid) for volume, disk in placed),
    )


def _stale_safety(node: _Node, evaluation: single_node.NodeEvaluation) -> tuple[bool, Meeting | None]:
    """Returns whether a node is stale-safe, and if not, volumes that may meet on a disk."""
    overbooking = evaluation.overbooking()
    if overbooking is None and node.left_out and evaluation.required.sizes:
        counted = node.competitors + node.left_out
        evaluation = single_node.evaluate_node(node.view, node.resolution, node.name, counted, node.optional)
        if evaluation.refused is not None:
            return False, None
        overbooking = evaluation.overbooking()
    if overbooking is None:
        return True, None
    volumes = (*evaluation.required.volumes, *evaluation.required.optional_replicas)
    disk = evaluation.disks[overbooking.disk]
    return False, Meeting(disk.uuid, tuple(volumes[volume].name for volume in overbooking.volumes))


def _uncertain_volumes(node: _Node) -> str:
    """Says which PersistentVolumes a claim may be bound to on the node."""
    choices: dict[str, list[str]] = {}
    for volume in node.resolution.volumes:
        if volume.persistent_volume and (volume.nodes is None or node.name in volume.nodes):
            choices.setdefault(volume.claim, []).append(volume.persistent_volume)
    parts = [f"claim {claim} may be bound to {join_first(volumes, ' or ')}" for claim, volumes in choices.items()]
    return f"{join_first(parts, '; ')}; spec.volumeName of the claim can name one"


def _no_room_in_cluster(view: View, resolution: Resolution) -> str:
    volumes = resolution.unplaced
    parts: list[str] = []
    for count, volume in enumerate(volumes, start=1):
        nearest = single_node.nearest_disk(view, volume)
        if nearest:
            terms = volume.volume.topology_requirement
            tied = " or".join(f" of zone {term.zone}" if term.zone else f" of region {term.region}" for term in terms)
            size = format_bytes(volume.volume.size)
            parts.append(f"no disk{tied} can take {volume.name} ({size}); nearest: {nearest}")
        # Each volume takes a look at every disk, so only as many are examined as are named.
        if len(parts) == MAX_LISTED and count < len(volumes):
            parts.append(f"volumes that are not examined: {len(volumes) - count}")
            break
    if parts:
        return "; ".join(parts)
    labels = [f"{volume.name} ({format_bytes(volume.volume.size)})" for volume in volumes]
    return f"no disk can take {join_first(labels, ', or no disk ')}"


def _explain_shortage(node: _Node, evaluation: single_node.NodeEvaluation) -> Verdict:
    # The verdict has the bytes that one disk lacks for all volumes (`evaluation/single_node.py`), where they are
    # known.
    required = evaluation.required
    labels = _labels(node, evaluation)
    parts = []
    if node.reason is Reason.LOW_AVAILABLE:
        pairs = zip(evaluation.disks, labels, strict=True)
        spare = ", ".join(f"disk {label} {format_bytes(disk.headroom)}" for disk, label in pairs)
        for volume, written, mask in zip(required.volumes, required.written, evaluation.masks, strict=True):
            if not mask:
                parts.append(f"{volume.name} has {format_bytes(written)} of data; to spare: {spare}")
        return Verdict(node.reason, join_first(parts, "; "))
    if node.reason is Reason.INSUFFICIENT_STORAGE:
        profile = evaluation.profile
        lacking = [
            fit.missing_bytes_alone(required, profile, index, mask) for index, mask in enumerate(evaluation.masks)
        ]
        volume = required.volumes[lacking.index(max(lacking))]
        image = volume.volume.backing_image
        copy = f", and room for backing image {image} where the disk lacks it" if image else ""
        parts.append(f"{volume.name} needs {format_bytes(volume.volume.size)}{copy}")
    if node.reason is not Reason.INSUFFICIENT_STORAGE or len(required.sizes) > 1:
        count = format_count(len(required.sizes), "volume needs", "volumes need")
        parts.append(f"{count} {format_bytes(required.items.total)} together")
    for disk, label in zip(evaluation.disks, labels, strict=True):
        left = f"{format_bytes(disk.free)} left to schedule"
        if disk.free < 0:
            left = f"nothing left to schedule ({format_bytes(-disk.free)} too much is scheduled)"
        parts.append(f"disk {label} has {left}")
    if node.reason not in _LACKING_SPACE:
        portion = node.budget.portion(feasible.MAX_STEPS_PER_INSTANCE)
        packed = evaluation.reason(portion)
        node.budget.take_back([portion])
        if packed.fits and node.reason is Reason.UNDECIDED and node.sentences.has_needs:
            return Verdict(node.reason, _OPEN_DECISION + node.sentences.needs(node.name))
        if packed.fits or packed is Reason.UNDECIDED:
            return Verdict(node.reason, "; ".join(parts))
    missing = single_node.missing_space(evaluation, node.budget)
    if not missing.exact:
        parts.append(f"at least {format_bytes(missing.size)} more are needed on one disk")
    elif not missing.size:
        parts.append("more space on a single disk is not enough")
    return Verdict(node.reason, "; ".join(parts), missing=missing.size)


def _labels(node: _Node, evaluation: single_node.NodeEvaluation) -> list[str]:
    names = _disk_names(node)
    return [names[disk.uuid] for disk in evaluation.disks]


def _disk_names(node: _Node) -> dict[str, str]:
    return {disk.uuid: disk.name for disk in node.view.snapshot.longhorn_nodes[node.name].disks}
