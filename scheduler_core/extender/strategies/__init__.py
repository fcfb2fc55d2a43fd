"""Compares ways to choose nodes for the same pods.

The ways are: no extender, Longhorn's proposal, and this extender. Data flow: a `Situation` of `what_if` with pods to
place → one run per strategy and seed (`seeded_run.py`): kube-scheduler's filters, the strategy's own (`strategy.py`), a
node at random, binding, Longhorn's placement on a status that lags → the figures of all runs (`comparison.py`).
`generated_cluster.py` draws a cluster and pods of any size.
"""
