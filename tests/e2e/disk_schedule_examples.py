"""DiskSchedules as people write them: the proposal's example, and wrong ones."""

from tests import builders
from tests.builders import Object

UUID = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
# The proposal's example, word for word.
EXAMPLE = """
apiVersion: longhorn.io/v1beta2
kind: DiskSchedule
metadata:
  finalizers:
    - longhorn.io
  name: aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee
spec:
  name: example-disk
  nodeID: example-node
  replicas:
    r1: 53687091200
    r2: 53687091200
    r3: 536870912000
    r4: 5368709120
  backingImages:
    b1: 53687091200
    b2: 53687091200
"""
BAD = """
apiVersion: longhorn.io/v1beta2
kind: DiskSchedule
metadata: {{name: {name}, finalizers: [example.com/mine]}}
spec: {{name: {disk}, nodeID: {node}, replicas: {{r: {size}}}}}
"""


def example_node(available: float) -> Object:
    node = builders.longhorn_node("example-node", {"example-disk": builders.disk(1000, available=available)})
    node["status"]["diskStatus"]["example-disk"]["diskUUID"] = UUID
    return node
