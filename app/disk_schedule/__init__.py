"""Program 3: the DiskSchedule controllers. Each reads objects, asks a pure function of `scheduler_core.disk_schedule`
what to write, and writes it.

Data flow: `watches` (one `informer` per kind, and `disk_index` over them) → a controller subscribes to changes and enqueues
keys (`app.runtime.work_queue`) → `reconcile(key)` → a decision of `scheduler_core.disk_schedule` from the caches → `writer`
carries it out, each write against the version that was read; `schedule_writer` has one writer at a time per disk.

    watches                    everything that the controllers watch
    informer                   cache of the objects of one kind, which notifies subscribers
    disk_index                 what is on each disk, and what is left there
    writer                     carries out decisions, write by write
    schedule_writer            writes DiskSchedules, one writer at a time per disk
    object_events              Events about Volumes, BackingImages and DiskSchedules
    controller                 base class of the controllers, and what they share
    node_controller            one DiskSchedule for each disk (node sync)
    disk_controller            statuses of DiskSchedules: allocate, or mirror
    volume_controller          places, requests and sizes of a volume's replicas
    replica_controller         releases deleted replicas
    backing_image_controller   copies of backing images
    orphan_controller          withdraws requests whose object does not exist
    manager_detection          whether longhorn-manager runs, or owns the DiskSchedules
    lifecycle                  when the controllers run: caches, leadership, shutdown
    metrics                    metrics for Prometheus
"""
