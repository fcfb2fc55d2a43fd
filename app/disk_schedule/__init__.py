"""The DiskSchedule controllers: watches and work queues around the pure decisions of `scheduler_core.disk_schedule`."""
