"""The stand-alone scheduler: schedules pods by the classic rules and a policy file.

`whatif` schedules the pending pods of a snapshot. In a live cluster `cache` watches nodes and pods, `policy_sources` provides the
policy in force, `scheduling_queue` orders the pods, `scheduler` decides, `binder` binds, `event_recorder` and `pod_condition` report the
result, and `lifecycle` leads or follows.
"""
