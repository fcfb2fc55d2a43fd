"""The life of a volume and its replicas, as Longhorn's volume controller leads it: one pure function per phase.

`decide` composes them. Where a replica may go, how many are missing and which failed one is used again is
`scheduler_core.longhorn`'s to say; what is here is when Longhorn asks.
"""
