"""Answers questions about the future of a cluster, by the production decision and Longhorn's rules on other states.

Data flow: a `PredictedCluster` → the changes of the question, in order (`cluster_changes.py`, `cluster_additions.py`) → a `Situation`
→ one `Timeline` per order, each pod by the production decision (`pod_decision.py`), each replica by Longhorn's own rules
(`predicted_replicas.py`) → one answer over all orders.

The questions: `prediction.py` (what-if), `pod_headroom.py`, `drain_order.py`
(maintenance), `node_loss.py`, `remedies.py` (of the steps in `possible_steps.py`), `replica_moves.py` (the fewest moves
of replicas for a goal).
"""
