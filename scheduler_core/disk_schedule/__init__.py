"""DiskSchedules: room on a disk is asked for, granted by one controller, and only then used.

Longhorn's volume controllers run on every node and each reads a status that lags behind, so two of them promise the same
bytes. A DiskSchedule is the one place where a disk's bytes are promised: its spec holds the requests, its status the
answers, and the API server's optimistic concurrency makes every write one against the version that was read.

Every controller is a loop around one pure function of this package:

    node sync        node_sync.synced(nodes, schedules)         DiskSchedules to create, update, delete
    DiskSchedule     reconcile.reconciled(schedule, node, now)  the next status, whether the finalizer goes
    volume           volumes.decided(sight, now)                requests, places, sizes, the condition DiskAllocation
    replica          replicas.released(name, replica, ...)      requests to withdraw, on deletion only
    backing image    backing_images.decided(sight)              copies and requests
    mirror           mirror.mirrored(...)                       what a DiskSchedule would say of a cluster as it is

A function returns writes in an order. The caller carries them out one by one, each against the version that was read, and stops at
the first that fails: 409 means somebody was faster, so everything is read and decided again. (A second write of the same object is
against the version the first returned.) Because of the order no
prefix of them leaks or loses bytes: a place is noted in the Replica (or the BackingImage) before it is asked for, and a
request is withdrawn before its place is forgotten. Nothing is remembered between two decisions but what the objects say.

`allocation` is the rule itself, `requests` changes a spec, `counting` tells the extender what a DiskSchedule adds to
what it already counts.
"""
