"""The talking half: HTTP, files, Kubernetes and the command line around `scheduler_core`."""

DISTRIBUTION = "longhorn-scheduler-extender"
API_VERSION = "longhorn-extender/v1"
