"""Longhorn without disks: plays every part of Longhorn that needs real ones against a real Kubernetes API server.

Data flow: watches (`watch`) fill tables (`store`); a change wakes the keyed queue (`queue`) of each controller concerned; a
controller gathers what one object needs and calls a pure function that answers with actions (`actions`), which
`perform` carries out against the API server. Placement itself is not decided here but by `scheduler_core.longhorn`.
"""
