"""Whether nodes fit a pod's volumes, alone and together with the volumes of competing pods.

state              view, disk profiles and demand, advanced together
node_rules         rules that look at a node as a whole
disk_profile       a node's open disks, without names
fit                whether a disk profile fits the requirements
optional_volumes   the pod's own volumes without data locality, as they may be in the way of its local ones
stale_safety       whether outdated status may lead Longhorn to overbook a disk of a profile
profile_cache      profiles per volume class, and their results
single_node        one node on its own, with the disks' names
competitors        the volumes of other pods on one node, and the pod that they compete with
offered_volumes    the volumes of outstanding offers, as a view has them
roaming            best-effort volumes that go to other nodes
room               on which nodes volumes fit together
replica_needs      which replicas of a pod's volumes need a place
whole_pod          whether all of them have one in the cluster together
volumes_anywhere   the volumes of other pods that may go to any node, on each node that takes them
contention         which volumes of other pods compete for a node
equivalence_cache  results per node for equivalent pods
reasons            from Longhorn's rules to the reasons users see
"""
