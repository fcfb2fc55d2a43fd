"""Whether all volumes of a pod have a placement together: local ones on the candidate, the others on any node.

Data flow: the replicas that need a place (`replicas_to_place.py`) → none that may go to other nodes: nothing to decide → enough disks that could
each take everything: every node is fine, which is the common case → otherwise the *useful* disks, which can take one of these replicas →
few of them: an exact search per candidate that has useful disks, and one for all other candidates → many: a count that refuses only what
cannot have a placement.

Other pods' volumes do not count here. They compete for the candidate only, where the local volumes are packed jointly with them.
Answers are kept with the state, so that equal pods are answered once per state.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from scheduler_core.cluster.view import View
from scheduler_core.evaluation import cluster_state, replicas_to_place, single_node
from scheduler_core.model.verdict import Reason
from scheduler_core.packing.budget import Budget, PackingAnswer, Portions, share_fairly
from scheduler_core.packing.feasible import MAX_STEPS_PER_INSTANCE
from scheduler_core.packing.spread import SHARED, ReplicaGroup, fits_spread
from scheduler_core.structs import Struct
from scheduler_core.volumes.existing_replicas import nodes_with_replica
from scheduler_core.volumes.resolve import Resolution

MAX_DISKS = 50
"""With more useful disks than this the replicas are counted, not placed."""
MAX_REPLICAS = 200
# Places for a few volumes are sought at once, and each of two searches may take its most (`packing/spread.py`).
_PORTIONS = Portions(first=3_000, most=2 * MAX_STEPS_PER_INSTANCE)
_REASONS = {PackingAnswer.NO: Reason.NOT_TOGETHER_IN_CLUSTER, PackingAnswer.UNDECIDED: Reason.UNDECIDED}
# The case of an answer that holds whichever node the pod runs on.
_ANY_NODE = "any node"
_Place = tuple[str, str]


class _WholePod(Struct, frozen=True, dict=True):
    """A pod with the replicas that need a place (`replica_needs`)."""

    state: cluster_state.ClusterState
    resolution: Resolution
    needs: tuple[replicas_to_place.ReplicaNeed, ...]

    @property
    def view(self) -> View:
        return self.state.view

    @cached_property
    def key(self) -> object:
        """Equal for pods that have the same answers."""
        placed = tuple((entry.volume.name, entry.volume.size) for entry in self.resolution.local if entry.replicas)
        return tuple(need.key for need in self.needs), placed

    @cached_property
    def spreading(self) -> tuple[replicas_to_place.ReplicaNeed, ...]:
        """The needs with replicas that may go to other nodes than the pod's."""
        return tuple(need for need in self.needs if need.elsewhere)

    @cached_property
    def total(self) -> int:
        """Bytes that everything together takes at most, wherever it goes."""
        view = self.view
        images = {volume.volume.backing_image for volume in self.resolution.volumes}
        entries = (view.snapshot.backing_images.get(image) for image in images)
        unplaced = {need.volume.claim for need in self.needs if not need.placed}
        on_node = (entry.volume.size for entry in self.resolution.local if entry.claim not in unplaced)
        replicas = (need.volume.volume.size * need.count for need in self.needs)
        return sum(replicas) + sum(on_node) + sum(entry.real_size for entry in entries if entry is not None)

    @cached_property
    def local(self) -> tuple[tuple[str, frozenset[str]], ...]:
        cluster = self.view.cluster
        return tuple((volume.claim, nodes_with_replica(volume, cluster)) for volume in self.resolution.local)

    def needs_space(self, name: str) -> tuple[bool, ...]:
        return tuple([name not in nodes for _, nodes in self.local])


def nodes_without_placement(
    state: cluster_state.ClusterState, resolution: Resolution, names: Sequence[str], budget: Budget
) -> Mapping[str, Reason]:
    """Returns the nodes among `names` with which the whole pod has no placement, with the reason. The local volumes fit
    on each of these nodes. The reason says so if something else than the disks' space is short.
    """
    needs = replicas_to_place.replica_needs(resolution, state.view) if names else ()
    if not needs:
        return {}
    pod = _WholePod(state, resolution, needs)
    answer = state.placements.get((pod.key, _ANY_NODE))
    if answer is None and _is_roomy(pod):
        answer = PackingAnswer.YES
    refused: Mapping[str, Reason] = {}
    if answer is None:
        disks = _useful_disks(pod) if sum(need.count for need in needs) <= MAX_REPLICAS else None
        if disks is not None:
            refused = _search_placements(pod, disks, names, budget)
        else:
            answer = PackingAnswer.YES if replicas_to_place.counting_allows(state, needs) else PackingAnswer.NO
    if answer is not None:
        state.placements.put((pod.key, _ANY_NODE), answer)
        refused = {} if answer is PackingAnswer.YES else dict.fromkeys(names, _REASONS[answer])
    if refused and replicas_to_place.domain_shortage(state, needs) is not None:
        return dict.fromkeys(refused, Reason.TOO_FEW_NODES)
    return refused


def _is_roomy(pod: _WholePod) -> bool:
    """Whether for each need enough nodes have a disk that could take everything together; False proves nothing."""
    nodes = pod.view.cluster.nodes
    for need in replicas_to_place.one_of_each_kind(pod.spreading):
        if need.placed:
            return False
        table = pod.state.profiles.table(need.required.classes)
        wanted = 1 if need.soft.node and need.soft.zone and need.soft.disk else need.count
        domains: set[str] = set()
        for name, profile in table.profiles.items():
            # On such disks no placement of one replica is in the way of another.
            if replicas_to_place.has_disk_for(profile, pod.total, need.volume.volume.actual_size):
                domains.add(name if need.soft.zone else nodes[name].zone)
                if len(domains) >= wanted:
                    break
        if len(domains) < wanted:
            return False
    return True


class _Disks(Struct, frozen=True):
    free: Mapping[_Place, int]  # bytes by node and disk UUID
    by_claim: Mapping[str, frozenset[_Place]]  # the disks that each volume's replicas may use
    nodes: frozenset[str]


def _useful_disks(pod: _WholePod) -> _Disks | None:
    """Returns the disks that can take a replica that may go to other nodes, or None if there are too many to search."""
    view = pod.view
    free: dict[_Place, int] = {}
    by_kind: dict[object, frozenset[_Place]] = {}
    for need in replicas_to_place.one_of_each_kind(pod.spreading):
        table = pod.state.profiles.table(need.required.classes)
        tiers = replicas_to_place.nodes_in_tiers(view.cluster, need)
        used = replicas_to_place.used_disks(need)
        places: set[_Place] = set()
        for name, profile in table.profiles.items():
            if (tiers is None or name in tiers) and replicas_to_place.has_disk_for(profile, need.volume.volume.size, 0):
                for disk in replicas_to_place.open_disks(view, need, name):
                    if disk.uuid not in used:
                        free[name, disk.uuid] = disk.free
                        places.add((name, disk.uuid))
                if len(free) > MAX_DISKS:
                    return None
        by_kind[need.key] = frozenset(places)
    by_claim = {need.volume.claim: by_kind[need.key] for need in pod.spreading}
    return _Disks(free, by_claim, frozenset(name for name, _ in free))


def _search_placements(pod: _WholePod, disks: _Disks, names: Sequence[str], budget: Budget) -> Mapping[str, Reason]:
    case_by_node = {name: _case_of(pod, disks, name) for name in names}
    node_by_case = {case: name for name, case in reversed(case_by_node.items())}
    placements = pod.state.placements
    cached = ((case, placements.get((pod.key, case))) for case in node_by_case)
    answers = {case: answer for case, answer in cached if answer is not None}
    missing = {case: name for case, name in node_by_case.items() if case not in answers}
    if missing:
        answers.update(_search_cases(pod, disks, missing, budget))
    reasons = {case: _REASONS[answer] for case, answer in answers.items() if answer is not PackingAnswer.YES}
    if not reasons:
        return {}
    return {name: reasons[case] for name, case in case_by_node.items() if case in reasons}


def _search_cases(
    pod: _WholePod, disks: _Disks, node_by_case: Mapping[object, str], budget: Budget
) -> Mapping[object, PackingAnswer]:
    # The next request goes on with the cases that stay undecided.
    problem_by_case = {case: _problem(pod, disks, name) for case, name in node_by_case.items()}
    problems = sorted(set(problem_by_case.values()), key=lambda problem: (-sum(problem.free), problem))
    # Keyed by hash, because a problem is large. A hash that two problems share only changes how many steps they get.
    unfinished = pod.state.profiles.unfinished_placements
    steps_by_hash = unfinished.get(pod.key) or {}
    tried = {problem: steps_by_hash[hash(problem)] for problem in problems if hash(problem) in steps_by_hash}
    answers = share_fairly(
        problems, lambda problem, share: fits_spread(problem.groups, problem.free, share), _PORTIONS, budget, tried
    )
    if tried:
        unfinished.put(pod.key, {hash(problem): steps for problem, steps in tried.items()})
    else:
        unfinished.pop(pod.key)
    for case, problem in problem_by_case.items():
        if answers[problem] is not PackingAnswer.UNDECIDED:
            pod.state.placements.put((pod.key, case), answers[problem])
    return {case: answers[problem] for case, problem in problem_by_case.items()}


def _case_of(pod: _WholePod, disks: _Disks, name: str) -> object:
    """Returns a key that candidates with the same answer share."""
    # The pod's node matters only where local volumes need space on it. Without useful disks there, they take no space from other replicas;
    # only their own other replicas may have to stay out of its zone.
    needs_space = pod.needs_space(name)
    if True in needs_space and name in disks.nodes:
        return name
    by_zone = True in needs_space and any(need.volume.local and not need.soft.zone for need in pod.spreading)
    return needs_space, pod.view.cluster.nodes[name].zone if by_zone else ""


class _Problem(Struct, frozen=True, order=True):
    """The replicas to place if the pod runs on a node."""

    free: tuple[int, ...]  # bytes by disk
    groups: tuple[ReplicaGroup, ...]


def _problem(pod: _WholePod, disks: _Disks, name: str) -> _Problem:
    pairs = zip(pod.local, pod.needs_space(name), strict=True)
    missing = {claim for (claim, _), needs_space in pairs if needs_space}
    free = dict(disks.free)
    # The disks of the node that each volume may use which needs space there.
    own_disks: dict[str, frozenset[_Place]] = {}
    if missing and name in disks.nodes:
        node = single_node.evaluate_node(pod.view, pod.resolution, name)
        places = [(name, disk.uuid) for disk in node.disks]
        free |= zip(places, (disk.free for disk in node.disks), strict=True)
        for volume, mask in zip(node.required.volumes, node.masks, strict=True):
            own_disks[volume.claim] = frozenset(place for index, place in enumerate(places) if mask >> index & 1)
    needs = {need.volume.claim: need for need in pod.spreading}
    nodes = pod.view.cluster.nodes
    groups = []
    for volume in pod.resolution.volumes:
        need = needs.get(volume.claim)
        on_node = volume.claim in missing
        masks = [_mask(free, own_disks[volume.claim])] if on_node and name in disks.nodes else []
        domains = (SHARED,) * len(free)
        if need is not None:
            # A number by disk for what at most one of the replicas may use.
            keys = [replicas_to_place.domain_of(pod.view.cluster, need, nodes[node], uuid) for node, uuid in free]
            numbers = {key: number for number, key in enumerate(dict.fromkeys(keys)) if key != SHARED}
            domains = tuple(numbers.get(key, SHARED) for key in keys)
            allowed = disks.by_claim[volume.claim]
            # The local replica is not among `masks`, and takes its zone even from nodes that only hold evicting replicas.
            if on_node and not masks and not need.soft.zone:
                allowed = frozenset(place for place in allowed if nodes[place[0]].zone != nodes[name].zone)
            masks += [_mask(free, allowed)] * (need.count - on_node)
        if masks:
            name_of_image = volume.volume.backing_image
            image = pod.view.snapshot.backing_images.get(name_of_image)
            # Bytes to copy by disk.
            copies = () if image is None else tuple(0 if uuid in image.disks else image.real_size for _, uuid in free)
            groups.append(ReplicaGroup(volume.volume.size, tuple(masks), domains, copies, name_of_image))
    return _Problem(tuple(free.values()), tuple(groups))


def _mask(places: Iterable[_Place], allowed: frozenset[_Place]) -> int:
    return sum(1 << index for index, place in enumerate(places) if place in allowed)
