"""The stand-alone scheduler: schedules pods by the classic rules and a policy file.

Data flow in a live cluster: `cache` → `scheduling_queue` → `scheduler` → `api_calls`.

    cache               watched nodes, services and pods, with assumed pods on their nodes, and Longhorn's objects
    scheduling_queue    pods that need a node, by priority, with back-off
    decision            one decision by a policy; the what-if on a snapshot
    scheduler           takes pods off the queue, decides, assumes and binds
    api_calls           binds one pod to its node; whether the claims of a pod exist, before a node is selected; Events about pods,
                        the condition PodScheduled, and metrics for Prometheus
    lifecycle           when this process schedules: leadership, shutdown, probes
"""
