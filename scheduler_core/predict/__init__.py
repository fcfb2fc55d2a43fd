"""Answers questions about the future of a cluster, by the production decision and Longhorn's rules on other states.

Data flow: a `PredictedCluster` → changes of the verbs, in order (`cluster_changes.py`, `cluster_additions.py`) → one
`Timeline` per order, each pod by the production decision (`pod_decision.py`), each replica by Longhorn's own rules
(`predicted_replicas.py`) → one answer over all orders: `prediction.py`, `pod_headroom.py`, `drain_order.py`, `node_loss.py`.

What makes a pod fit (`remedies.py`): a pod that fits nowhere → changes that may help (`setting_steps.py`,
`disk_space_steps.py`), the cheapest first → each is applied to the cluster (`remedy_step.py`) and decided (`trials.py`) → what
helps is a `Remedy` (`remedy.py`).

Which replicas can be moved, and where Longhorn may put them: `replica_moves.py`. The fewest moves after which more fits:
`move_search.py`, for a goal (`rebalance_goals.py`), by sequences of moves (`move_sequence.py`).

Ways to choose nodes, compared where events take time: `strategies.py`, `paced_timeline.py`.
"""
