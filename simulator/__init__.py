"""Longhorn without disks, on a real Kubernetes API server.

It plays every part of Longhorn that needs real disks.

Data flow: watches fill tables (`store.py`). A change adds a key to the queue of every controller concerned (`event_routing.py`,
`controller_queue.py`). A controller (`controllers.py`) gathers the observation of one object and calls a pure function that returns
actions (`actions.py`); `action_runner.py` carries them out against the API server. `scheduler_core.longhorn` decides on placement.
"""
