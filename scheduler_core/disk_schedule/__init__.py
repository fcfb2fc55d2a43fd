"""DiskSchedules: space on a disk is requested, granted by one controller, and only then used.

Longhorn's volume controllers run on every node, and each reads a status that lags behind, so two of them promise the same
bytes. A DiskSchedule is the one place where a disk's bytes are promised: its spec holds the requests, its status the
allocations, and the API server accepts a write only against the version that was read (optimistic concurrency).

Every controller is a loop around one pure decision of this package:

    node sync        reconcile.sync_disks          DiskSchedules to create, update, delete, create again
    DiskSchedule     reconcile.reconcile           the next status, and whether to remove the finalizer
    volume           volumes.decide_volume         places, requests, sizes, the condition DiskAllocation
    replica          writes.release_replica        requests to withdraw, on deletion only
    backing image    backing_images.decide_image   copies and requests
    mirror           reconcile.mirror_spec         a DiskSchedule that describes the cluster as it is

A decision is a sequence of writes (`writes`). The caller carries them out one by one, each against the version that was
read, and stops at the first that fails: 409 means that another writer was faster, so everything is read and decided again.
(A second write of the same object is against the version that the first returned.) Because of the order, no prefix of the
writes leaks or loses bytes: a place is noted in the Replica (or the BackingImage) before space is requested there, and a
request is withdrawn before its place is removed. Between two decisions, all state is in the objects.

The decisions share these modules:

    allocation     the rule: which requests are granted; and which bytes count
    writes         writes, changes of a spec, and types and reasons of conditions
    occupancy      what is on a disk, as Replicas and BackingImages say, and how far a replica's allocation is
    disk_space     what is left on a disk for newcomers, which of them a replica may request, and what the extender counts there
    expansion      part of `volumes`: a volume that grows
"""
