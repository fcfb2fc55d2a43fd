"""Converts Kubernetes objects to model values and back. Raw field names are known here, and as the paths at the fields
of the models.

Data flow: bytes or YAML (`app/kube`) → a wire Struct (derived by `fields`; msgspec checks the types and names the field) →
a frozen model value. The package is in the core because recorded decisions (`longhorn/vectors.py`) are written in the same
fields; it is pure: values in, values out.

fields                  derives wire types and constructors from the paths at the fields of models
snapshot_kinds          the kinds that a snapshot may hold, and how each is read
kube                    nodes, pods, claims, volumes, snapshots, classes and attachments
pod_disruption_budget   PodDisruptionBudgets, which predicted evictions read
longhorn                Longhorn's custom resources
generic                 nodes, pods, services and controllers as the generic scheduler reads them
pod_requests            a pod's requests and host ports, and their sums
selectors               label selectors, affinity, spreading, taints and tolerations
binding                 pending pods; Bindings and selected nodes as a scheduler writes them
event                   Events about any object, as recorders write them
pod_patch               patches of a pod: the nudge, the condition PodScheduled
disk_schedule           DiskSchedules and related objects as the DiskSchedule controllers read and write them
disk_schedule_owner     which program answers DiskSchedules
redacted_disk_schedule  a DiskSchedule cut down to requests and answers
coordination            the Lease of leader election
installed_objects       pods, Services and Events as a diagnosis reads them
probe_objects           what a diagnosis creates
discovery               the EndpointSlice of the Service
applied_objects         objects of a file, as `kubectl apply` would write them
service_account         the ServiceAccount of the process, as an owner
redact                  objects cut down to what decisions read, for bug reports
object_header           name, version and finalizers of any object
json_text               places in a JSON text, and keys that are written twice, for error messages
tolerant_fields         values that may be anything, as faults quote them
meta                    what all wire types share
"""
