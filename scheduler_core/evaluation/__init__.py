"""Whether nodes fit a pod's volumes, alone and together with the volumes of competing pods.

profile               what a node's open disks offer to classes of volumes, without names, and the reasons if they offer nothing
fit                   whether a profile fits the requirements, in any order of placement, and on outdated status
state                 view, profiles with their results, and demand, advanced together
single_node           one node on its own, with the disks' names, and how many bytes a disk lacks
replicas              which replicas of a pod's volumes need a place
whole_pod             whether all of them have one in the cluster together
competitors           the volumes of other pods on one node, and the pod that they compete with
competitors_anywhere  the volumes of other pods that may go to any node, on each node that takes them
contention            which volumes of other pods compete for a node
many_nodes            many nodes at once, with results per node for equivalent pods
"""
