"""A scheduler of its own: pods of a live cluster, or of a snapshot, go where the classic rules and a policy file send them.

`whatif` schedules the pending pods of a snapshot. Beside a cluster `cluster` watches, `rules` know the policy in force, `queue` says who is tried
when, `scheduler` decides, `binding` binds, `events` and `conditions` tell pods what has become of them, and `service` leads or follows.
"""
