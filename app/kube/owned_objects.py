"""Creates objects that Kubernetes removes with the ServiceAccount of the process.

An existing object keeps the owners that it has: to change them may need permissions that the process does not have
(admission plugin OwnerReferencesPermissionEnforcement).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from app.kube.client import ApiError, KubeClient
from scheduler_core.convert.service_account import SELF_REVIEW, owner_references, with_owners

_REVIEWS: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


async def create_owned(client: KubeClient, path: str, namespace: str, body: Mapping[str, Any], seconds: float) -> bytes:
    """POSTs an object that the process's ServiceAccount owns. It returns the body of the response. Without a
    ServiceAccount in `namespace` the object has no owner. Each of the two calls takes at most half of `seconds`.

    Raises:
        ApiError: as `KubeClient.create`
    """
    owners = await _owners(client, namespace, seconds / 2)
    if owners:
        body = with_owners(body, owners)
    return await client.create(path, body, seconds / 2)


async def _owners(client: KubeClient, namespace: str, seconds: float) -> list[dict[str, str]]:
    try:
        return owner_references(await client.create(_REVIEWS, SELF_REVIEW, seconds), namespace)
    except ApiError as error:
        # An administrator may have taken this right from authenticated users. An object without an owner is better than none.
        if error.forbidden or error.not_found:
            return []
        raise
