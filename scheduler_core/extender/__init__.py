"""What the scheduler extender answers.

settings             Longhorn's three scheduler-extender settings
decision             options, contenders and the decision about one pod
filter               which nodes can hold all of a pod's volumes
explain              plans and numbers behind a decision
offer                what is offered of a decision, and how offers end
nudge                when a refused pod is retried
placement_monitor    demand that was misplaced, is hopeless or stuck
overbooking_monitor  disks that placements overbooked
longhorn_facts       a decision as the classic scheduler's rules read it
"""
