"""From a pod to what its volumes require, and the space that volumes will take and that no Longhorn object shows yet.

resolve               pod, claim, PersistentVolume, Longhorn volume; nodes without the CSI driver
data_source           where a new volume's data comes from, also for the simulator
free_volume_matching  which PersistentVolumes kube-scheduler binds unbound claims to, and so the volumes by node
volume_requirements   what the volumes need of any node
existing_replicas     which nodes already hold usable replicas, and where a strict-local volume stays
decided_pods          the decided nodes of pods, and which of their replicas Longhorn does not list yet
outstanding_demand    the demand of one volume or claim, derived from the cluster; volumes that may go to any node
demand_index          all demand of a view, by volume and by node
"""
