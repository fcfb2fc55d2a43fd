"""Reads the Kubernetes API: calls, list and watch, caches, and snapshots.

client              calls that return the body as bytes
resources           the REST path of each kind
owned_objects       creates objects that end with the ServiceAccount
paging              lists a collection page by page
reflector           lists and watches one kind
store               the watched objects, and how current they are
cluster_cache       the cache of everything that decisions read
generic_cache       the cache of nodes, pods, services and more for the rules of a policy
config_map_cache    the cache of one ConfigMap
interning           equal texts become one object
snapshot_file       reads a snapshot file
source_position     line and column of a value in a snapshot file
snapshot_generic    reads a snapshot file for the generic scheduler
snapshot_live       reads the live cluster as a snapshot
"""
