"""From a pod to what its volumes require.

resolve            pod, claim, PersistentVolume, Longhorn volume
requirements       what the volumes need of any node
existing_replicas  which nodes already hold usable replicas
csi_drivers        where Longhorn attaches none, because its CSI driver is not there
pending_replicas   which replicas Longhorn does not list yet
"""
