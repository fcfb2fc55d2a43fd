"""Reads the Kubernetes API: calls, list and watch, caches, and snapshots.

client              calls that return the body as bytes; collections, page by page
answer_memory       the memory that answers may take
resources           the REST path of each kind
reflector           lists and watches one kind
store               the watched objects, and how current they are; the data of one ConfigMap
cluster_cache       the cache of everything that decisions read; reads the live cluster as a snapshot
generic_cache       the cache of nodes, pods, services and more for the rules of a policy
snapshot_file       reads a snapshot file: what Longhorn's rules, the generic scheduler and kube-scheduler's own filters need of it
"""
