"""Longhorn's own placement policy, as a pure engine: what longhorn-manager would decide about a replica, and why.

`settings` and `cluster` hold what a decision reads, `space`, `node_stage` and `disk_stage` one small function per rule,
`anti_affinity` the order of preference, `balance` the choice among equals, `placement` their composition. The rest is
built on those: `new_volume`, `replenish`, `reuse`, `expansion`, `capacity`, `node_status`, `explanation`. Where Longhorn
leaves a choice to chance (Go's map order), the engine returns every possible outcome with the reason why it is possible.
`vectors` replays recorded decisions of the real Longhorn.
"""
