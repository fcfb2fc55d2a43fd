"""Program 3: the DiskSchedule controllers. Each reads objects, asks a pure function of `scheduler_core.disk_schedule`
what to write, and writes it.

Data flow: `controller_cache` (one `Informer` per kind, and indexes by disk over them) → a controller subscribes to changes and enqueues
keys (`app.runtime.work_queue`) → `reconcile(key)` → a decision of `scheduler_core.disk_schedule` from the caches → `writer`
carries it out, each write against the version that was read, with one writer at a time per disk.

    controller_cache      everything that the controllers watch, with versions; what is on each disk, and what is left there
    writer                carries out decisions, write by write; one writer at a time per disk
    controller_base       base class of the controllers, what they share, and metrics
    schedule_controllers  one DiskSchedule for each disk (node sync), and their statuses: allocate, or mirror; orphaned requests
    volume_controllers    replicas of volumes, released replicas, copies of backing images
    lifecycle             when the controllers run: caches, leadership, longhorn-manager, shutdown
"""
