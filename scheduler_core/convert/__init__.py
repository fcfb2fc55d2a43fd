"""Converts Kubernetes objects to model values and back. Raw field names are known here, and as the paths at the fields
of the models.

Data flow: bytes or YAML (`app/kube`) → a wire Struct (derived by `wire_types`; msgspec checks the types and names the field) →
a frozen model value. The package is in the core because recorded decisions (`longhorn/vectors.py`) are written in the same
fields; it is pure: values in, values out. A reader raises ObjectError, with the object and the field, if it cannot read one.

wire_types          what all wire types share, and the derivation of the others, with constructors, from the paths at the fields of models;
                    name, version and finalizers of any object
snapshot_kinds      the kinds that a snapshot may hold, and how each is read; Longhorn's custom resources
kube                nodes, pods, claims, volumes, snapshots, classes, attachments and PodDisruptionBudgets;
                    Events as recorders write them
generic             nodes, pods, services and controllers as the generic scheduler reads them; pending pods, and Bindings,
                    selected nodes and patches of a pod as a scheduler writes them
pod_constraints     a pod's requests and host ports; label selectors, affinity, spreading, taints and tolerations
kubectl             objects of a file, as `kubectl apply` would write them; the commands that carry out a remedy
admission           a replica's placement under review
disk_schedule       DiskSchedules and related objects as the DiskSchedule controllers read and write them, and whose program answers
leadership          the Lease of leader election, the EndpointSlice of the Service, and the ServiceAccount that owns both
installed_objects   what a diagnosis reads and creates
redact              objects cut down to what decisions read, for bug reports
json_text           places in a JSON text, and keys that are written twice, for error messages
decision_replay     replays recorded decisions of files, and compares them with the engine's
"""
