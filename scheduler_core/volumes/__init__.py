"""From a pod to what its volumes require.

resolve            pod, claim, PersistentVolume, Longhorn volume; claims that are skipped, nodes without the CSI driver
by_node            the same where it depends on the node
volume_binding     which PersistentVolumes kube-scheduler binds unbound claims to
data_source        where a new volume's data comes from
requirements       what the volumes need of any node
existing_replicas  which nodes already hold usable replicas, and which replicas Longhorn does not list yet
"""
