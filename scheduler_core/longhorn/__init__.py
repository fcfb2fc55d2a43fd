"""Longhorn's own placement rules as a pure engine: what longhorn-manager would decide about a replica, and why. Every
rule cites the Go function of longhorn-manager that it mirrors.

- What a decision reads: `settings`, `cluster` (a prepared snapshot), `replica_request` (the replica to place, and the source of a linked clone).
- One small function per rule: `stages` (of a node, of a disk) and `space`, with `refusal_rules`, which lists
  all rules and what Longhorn reports for each.
- The decision: `anti_affinity` orders the nodes in tiers, `placement` composes the rules and chooses among candidates.
- Built on the decision: `new_volume_placement`, with the first rule that refuses each node and disk, and `replenish`,
  with the reuse of failed replicas.
- What surrounds it: `csi_driver` (the volume a claim would get, and GetCapacity), `volume_validation` (what admission refuses, what is
  attached for no workload, what may not grow), `node_controller` (what the node controller
  writes).
- `vectors` replays recorded decisions of the real Longhorn.

Where Longhorn leaves a choice to chance (Go's map order), the engine returns every possible outcome with the reason why
it is possible.
"""
