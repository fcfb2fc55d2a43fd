"""Whether nodes fit a pod's volumes, alone and together with the volumes of competing pods.

fit                     whether the open disks of a node, its profile, fit the requirements, in any order of placement, and on outdated status
disk_profiles           why nodes and volumes are refused before disks are compared, and the open disks of the others
cluster_state           view, profiles with their results, and demand, advanced together
single_node             one node on its own, with the disks' names, and how many bytes a disk lacks
replicas_to_place       which replicas of a pod's volumes need a place, or may be in the way
placement_across_nodes  whether all of them have one in the cluster together
competing_volumes       the volumes of other pods on one node, and the pod that they compete with
volumes_anywhere        the volumes of other pods that may go to any node, on each node that takes them
contention              which volumes of other pods compete for nodes, and which of these fit a pod together with them
"""
