"""Placements of replicas, as Longhorn asks the API server to write them."""

from __future__ import annotations

from copy import deepcopy

from scheduler_core.model.placement import Placement
from tests import builders as make
from tests.builders import GI, Object


def placement_review(placement: Placement) -> Object:
    """The AdmissionReview of the update that places a replica."""
    old = make.replica(
        placement.replica,
        placement.volume,
        size=placement.size / GI,
        healthy=False,
        diskPath="",
        dataEngine=placement.data_engine,
        image=placement.image,
        hardNodeAffinity=placement.hard_node_affinity,
        linkedCloneSrcReplicaName=placement.linked_clone_source,
    )
    old["metadata"]["labels"] = {"longhornvolume": placement.volume, "longhornnode": "", "longhorndiskuuid": ""}
    new = deepcopy(old)
    new["spec"] |= {
        "nodeID": placement.node,
        "diskID": placement.disk,
        "diskPath": placement.disk_path,
        "dataDirectoryName": f"{placement.volume}-0123abcd",
    }
    new["metadata"]["labels"] |= {"longhornnode": placement.node, "longhorndiskuuid": placement.disk}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "review-1",
            "kind": {"group": "longhorn.io", "version": "v1beta2", "kind": "Replica"},
            "operation": "UPDATE",
            "object": new,
            "oldObject": old,
            "dryRun": False,
        },
    }
