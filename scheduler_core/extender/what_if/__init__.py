"""Predicts what a change of the cluster leads to, by the production decision on another state.

Data flow: a `PredictedCluster` → changes of the verbs, in order (`cluster_changes.py`, `cluster_additions.py`) → one run per
seeded order (`seeded_order.py`), each pod by the production decision (`pod_decision.py`), each replica by Longhorn's own rules
(`predicted_replicas.py`) → one `Prediction` over all orders (`prediction.py`).
"""
