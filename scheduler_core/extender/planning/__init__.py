"""Answers questions about the future by predictions of `extender/what_if`.

Data flow: a `PredictedCluster` → many seeded orders or states of it, each by the production decision and Longhorn's rules →
one answer over all of them.

Which replicas can be moved, and where Longhorn may put them: `replica_moves.py`. The fewest moves after which more fits:
`move_search.py`, for a goal (`rebalance_goals.py`), by sequences of moves (`move_sequence.py`).
"""
