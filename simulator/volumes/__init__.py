"""The life of a volume and its replicas.

It mirrors Longhorn's volume controller, with one pure function per phase.

`volume_reconciler.decide_volume` composes the phases. `scheduler_core.longhorn` decides where a replica may go, how many are missing, and
which failed replica is used again; the modules here decide when Longhorn asks for that.
"""
