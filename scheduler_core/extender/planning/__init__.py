"""Answers questions about the future by predictions of `extender/what_if`.

Data flow: a `PredictedCluster` → many seeded orders or states of it, each by the production decision and Longhorn's rules →
one answer over all of them.

How many more pods of a template fit: `pod_headroom.py`. In which order nodes can be drained: `drain_order.py`. Whether a
node can be lost: `node_loss.py`.
"""
