"""The objects that a decision reads, and its result, as frozen values.

Modules:

    kube, longhorn    objects of Kubernetes and Longhorn; snapshot holds all of them
    disk_schedule     DiskSchedules, and backing images as their controller sees them
    generic           nodes, pods and services as the classic scheduler reads them
    constraints       taints, affinity, spreading and requests, which are newer than the classic scheduler
    installation      objects of an installation, as a diagnosis reads them
    quantity          Kubernetes quantities as whole numbers of bytes
    verdict           why a node fits or does not
"""
