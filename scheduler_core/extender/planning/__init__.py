"""Answers questions about the future by predictions of `extender/what_if`.

Data flow: a `PredictedCluster` → many seeded orders or states of it, each by the production decision and Longhorn's rules →
one answer over all of them.

What makes a pod fit (`remedies.py`): a pod that fits nowhere → changes that may help (`setting_steps.py`,
`disk_space_steps.py`), the cheapest first → each is applied to the cluster (`remedy_step.py`) and decided (`trials.py`) → what
helps is a `Remedy` (`remedy.py`).

How many more pods of a template fit: `pod_headroom.py`. In which order nodes can be drained: `drain_order.py`. Whether a
node can be lost: `node_loss.py`.

Which replicas can be moved, and where Longhorn may put them: `replica_moves.py`. The fewest moves after which more fits:
`move_search.py`, for a goal (`rebalance_goals.py`), by sequences of moves (`move_sequence.py`).
"""
