"""Reads the facts of a diagnosis from a cluster, as an administrator; calls processes of the extender as
`process_calls` says. `PERMISSIONS` are the calls that the extender makes; the manifests grant its ServiceAccount exactly these.
"""

import asyncio
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from app.extender import offer_store, process_calls
from app.kube import cluster_cache, resources
from app.kube.client import ApiError, KubeClient, pages
from scheduler_core import errors
from scheduler_core.convert import installed_objects, kube, leadership, snapshot_kinds, wire_types
from scheduler_core.decide.extender_settings import ExtenderSettings, SettingsHistory, SettingsSource
from scheduler_core.installation.facts import PROGRAM, Caller, GuardTrial, Installation, ProbeResult, ProcessReport
from scheduler_core.installation.kube_scheduler_config import SECOND_SCHEDULER
from scheduler_core.leadership.election import LEASE_NAME
from scheduler_core.leadership.endpoint_slice import EXTENDER, PLACEMENT_GUARD, PLACEMENT_GUARD_STANDBY
from scheduler_core.longhorn.cluster import parse_time
from scheduler_core.longhorn.csi_driver import DRIVER
from scheduler_core.model.installation import DEFAULT_SCHEDULER, InstalledPod, Permission, SchedulingFailure
from scheduler_core.model.kube import StorageClass
from scheduler_core.structs import Struct, replace

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_SYSTEM_NAMESPACE = "kube-system"
# Of pods that are only tried: every cluster has it.
_TRIAL_NAMESPACE = "default"
_EVENT_AGE = timedelta(hours=1)
_EXPIRY_METRIC = re.compile(
    rb"^longhorn_scheduler_extender_placement_guard_certificate_expiry_timestamp_seconds (\S+)", re.M
)
_ERROR = re.compile(r'\{"error": ?"(.*)"\}')
_Value = TypeVar("_Value")


class _Guard(msgspec.Struct):
    mode: str = ""
    problem: str = ""


class _Service(msgspec.Struct, rename="camel"):
    answering: bool = False
    refusal: str = ""
    refused_settings: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    placement_guard: _Guard | None = None


class _Caller(msgspec.Struct):
    address: str = ""
    form: str = ""


class _State(msgspec.Struct):
    service: _Service | None = None
    callers: tuple[_Caller, ...] = ()


class ReadOptions(Struct, frozen=True):
    """What to read."""

    namespace: str  # of Longhorn and of the extender
    probe: process_calls.ProbeOptions | None  # how to probe; None: no probe pod is created
    url: str = ""  # where the leader is reached directly; "": through the API server


class InstallationReader:
    """Reads the facts; what may not be read is noted as unknown."""

    def __init__(self, client: KubeClient, options: ReadOptions) -> None:
        self._client = client
        self._options = options
        self._unknown: list[str] = []

    async def read(self) -> Installation:
        """Returns the facts. Raises an ApiError if the API server does not answer."""
        namespace = self._options.namespace
        version = await process_calls.read_version(self._client)
        # Before other facts, whose reading then takes no time away from kube-scheduler's answer.
        admitted = await self._pod_after_admission()
        requested = self._options.probe.scheduler_name if self._options.probe is not None else ""
        scheduler = requested or (admitted.scheduler_name if admitted is not None else DEFAULT_SCHEDULER)
        asks = admitted is not None and admitted.asks(scheduler)
        probe, plain_probe = await self._probe(scheduler, without_resource=not asks)
        pods = await self._pods("")
        labelled = await self._pods(namespace, process_calls.EXTENDER_PODS)
        settings = await self._models(resources.LONGHORN_SETTINGS, namespace)
        classes = [entry for _, entry in await self._models(resources.STORAGE_CLASSES)]
        own_settings = await self._get(resources.CONFIG_MAPS, namespace, PROGRAM, _extender_settings)
        guard = await self._get(resources.MUTATING_WEBHOOKS, "", PLACEMENT_GUARD.name, bool)
        facts = Installation(
            now=datetime.now(UTC),
            namespace=namespace,
            kubernetes_version=version,
            service=await self._get(resources.SERVICES, namespace, EXTENDER.name, installed_objects.service_address),
            pods=tuple(labelled),
            system_pods=tuple(pod for pod in pods if pod.namespace in {namespace, _SYSTEM_NAMESPACE}),
            requesting_pods=tuple(sorted(pod.key for pod in pods if pod.requests_extender)),
            second_scheduler_pods=tuple(sorted(pod.key for pod in pods if pod.scheduler_name == SECOND_SCHEDULER)),
            claiming_pods=await self._claiming_pods(pods, classes),
            admitted=admitted,
            lease=await self._get(resources.LEASES, namespace, EXTENDER.name, installed_objects.held_lease),
            endpoints=await self._get(resources.ENDPOINT_SLICES, namespace, EXTENDER.name, _addresses) or (),
            guard_installed=bool(guard),
            probe=probe,
            plain_probe=plain_probe,
            scheduler_name=scheduler,
            settings=dict(settings),
            refused_settings=own_settings.problems if own_settings is not None else (),
            observes=own_settings is not None and own_settings.observes,
            storage_classes=tuple(classes),
            longhorn_nodes=tuple([entry for _, entry in await self._models(resources.LONGHORN_NODES, namespace)]),
            tracks_capacity=bool(
                await self._get(resources.CSI_DRIVERS, "", DRIVER, installed_objects.csi_driver_tracks_capacity)
            ),
        )
        reports = await self._ask_processes(facts)
        trial = await self._try_guard(facts) if facts.guard_installed else None
        denied = await self._missing_permissions(facts)
        failures = await self._failures(facts.now)
        return replace(
            facts, reports=reports, guard_trial=trial, denied=denied, failures=failures, unknown=tuple(self._unknown)
        )

    async def _pod_after_admission(self) -> InstalledPod | None:
        """Returns a new pod with a claim after admission, None if refused."""
        probe = self._options.probe
        namespace = (probe.namespace if probe is not None else "") or _TRIAL_NAMESPACE
        try:
            return await process_calls.admitted_pod(self._client, namespace)
        except ApiError as error:
            if error.unreachable:
                raise
            self._unknown.append(str(error))
        except errors.ObjectError as error:
            self._unknown.append(str(error))
        return None

    async def _probe(self, scheduler: str, *, without_resource: bool) -> tuple[ProbeResult | None, ProbeResult | None]:
        """Probes with a pod that requests the resource, and a plain one."""
        # The plain one names neither the resource nor a scheduler.
        options = self._options.probe
        if options is None:
            return None, None
        asking = process_calls.Probe(self._client, replace(options, scheduler_name=scheduler))
        if not without_resource:
            return await asking.run(), None
        plain = process_calls.Probe(
            self._client, replace(options, scheduler_name=DEFAULT_SCHEDULER, requests_extender=False)
        )
        # Not gather: it would end before both have removed what they created.
        async with asyncio.TaskGroup() as group:
            first, second = group.create_task(asking.run()), group.create_task(plain.run())
        return first.result(), second.result()

    async def _claiming_pods(self, pods: list[InstalledPod], classes: list[StorageClass]) -> tuple[InstalledPod, ...]:
        """Returns pods with a claim of a Longhorn StorageClass, without system pods."""
        names = {entry.name for entry in classes if entry.provisioner == DRIVER}
        claims = await self._models(resources.CLAIMS)
        keys = {key for key, claim in claims if claim.spec.storage_class in names}
        return tuple(
            pod
            for pod in pods
            if pod.namespace not in {self._options.namespace, _SYSTEM_NAMESPACE}
            and any((pod.namespace, claim) in keys for claim in pod.claims)
        )

    async def _pods(self, namespace: str, query: dict[str, str] | None = None) -> list[InstalledPod]:
        return [
            pod
            for pod in await self._list(resources.PODS, namespace, installed_objects.installed_pod, query)
            if pod.live
        ]

    async def _get(
        self, resource: resources.Resource, namespace: str, name: str, convert: Callable[[bytes], _Value]
    ) -> _Value | None:
        try:
            return convert(await self._client.get(resource.path(namespace, name)))
        except ApiError as error:
            self._note(error)
        except errors.ObjectError as error:
            self._unknown.append(str(error))
        return None

    async def _models(self, resource: resources.Resource, namespace: str = "") -> list[tuple[Any, Any]]:
        """Returns objects as snapshots have them, each with its key."""
        return await self._list(resource, namespace, snapshot_kinds.KINDS[resource.group, resource.kind].decode)

    async def _list(
        self,
        resource: resources.Resource,
        namespace: str,
        convert: Callable[[msgspec.Raw], _Value],
        query: dict[str, str] | None = None,
    ) -> list[_Value]:
        values: list[_Value] = []
        try:
            async for page in pages(self._client, resource.path(namespace), query or {}):
                for raw in page.items:
                    try:
                        values.append(convert(raw))
                    except errors.ObjectError as error:
                        self._unknown.append(str(error))
        except ApiError as error:
            self._note(error)
        return values

    def _note(self, error: ApiError) -> None:
        """Notes what may not be read; what does not exist is a fact."""
        if error.forbidden:
            self._unknown.append(str(error))
        elif not error.not_found:
            raise error

    async def _failures(self, now: datetime) -> tuple[SchedulingFailure, ...] | None:
        before = len(self._unknown)
        query = {"fieldSelector": "reason=FailedScheduling"}
        failures = await self._list(resources.EVENTS, "", installed_objects.scheduling_failure, query)
        if not failures and len(self._unknown) > before:
            return None
        # An event outlives its pod: the answers to earlier probes are not news.
        workloads = [failure for failure in failures if f"/{installed_objects.TAG}" not in failure.pod]
        times = [(failure, parse_time(failure.last)) for failure in workloads]
        return tuple(failure for failure, last in times if last is not None and now - last <= _EVENT_AGE)

    async def _missing_permissions(self, facts: Installation) -> tuple[Permission, ...] | None:
        account = next((pod.account for pod in facts.pods if pod.account), PROGRAM)

        async def may(permission: Permission) -> bool:
            review = installed_objects.access_review(permission, facts.namespace, account)
            return installed_objects.is_allowed(await self._client.create(_REVIEWS, review))

        try:
            answers = await asyncio.gather(*(may(permission) for permission in PERMISSIONS))
        except ApiError as error:
            self._note(error)
            return None
        return tuple(permission for permission, allowed in zip(PERMISSIONS, answers, strict=True) if not allowed)

    async def _try_guard(self, facts: Installation) -> GuardTrial:
        """Has the API server call the placement guard by a dry run, and otherwise looks for the obstacle."""
        path = f"{resources.LONGHORN_REPLICAS.path(facts.namespace)}?dryRun=All"
        try:
            answered = installed_objects.is_answered(
                await self._client.create(
                    path, installed_objects.probe_replica(resources.LONGHORN_REPLICAS.api_version)
                )
            )
        except errors.CoreError as error:
            return GuardTrial(problem=str(error))
        leader = facts.leader
        if answered or leader is None:
            return GuardTrial(answered)
        try:
            await process_calls.proxy_call(self._client, leader, "https", leader.guard_port or PLACEMENT_GUARD.port)("")
        except ApiError as error:
            # The guard itself answers no GET. What the API server says has a reason.
            if error.reason or error.status == 0:
                return GuardTrial(obstacle=str(error))
        return GuardTrial()

    async def _ask_processes(self, facts: Installation) -> dict[str, ProcessReport]:
        pods = [pod for pod in facts.pods if pod.address]
        # Processes with TLS answer only callers with a certificate, and the API server has none: it reaches their probes.
        probes_only = facts.service is not None and facts.service.tls

        def way_to(pod: InstalledPod) -> process_calls.Ask:
            if probes_only:
                return process_calls.proxy_call(self._client, replace(pod, port=pod.probe_port))
            if self._options.url and pod is facts.leader:
                return process_calls.direct_call(self._options.url)
            return process_calls.proxy_call(self._client, pod)

        reports = await asyncio.gather(*(_report(way_to(pod), probes_only=probes_only) for pod in pods))
        return {pod.name: report for pod, report in zip(pods, reports, strict=True) if report is not None}


def _addresses(raw: bytes) -> tuple[str, ...]:
    return tuple(endpoint.address for endpoint in leadership.endpoint_slice(raw, EXTENDER).endpoints)


def _extender_settings(raw: bytes) -> ExtenderSettings:
    data = wire_types.decode_json("ConfigMap", raw, kube.ConfigMap).data or {}
    return SettingsHistory().merge([SettingsSource(f"ConfigMap {PROGRAM}", data)])


async def _report(ask: process_calls.Ask, *, probes_only: bool) -> ProcessReport | None:
    """Returns what a process says of itself; of one whose probes alone are reached, only what is wrong."""
    try:
        await ask("readyz")
        if probes_only:
            return None
        state = msgspec.json.decode(await ask("state"), type=_State)
        expiry = _EXPIRY_METRIC.search(await ask("metrics"))
    except ApiError as error:
        # What the API server itself says has a reason; the extender's answer has none.
        if error.status == 503 and not error.reason:
            answer = _ERROR.search(str(error))
            return ProcessReport(not_ready=answer[1] if answer is not None else str(error))
        return ProcessReport(unreachable=str(error))
    except msgspec.DecodeError as error:
        return ProcessReport(unreachable=f"the answer is not the extender's: {error}")
    service = state.service or _Service()
    guard = service.placement_guard or _Guard()
    return ProcessReport(
        unreadable=service.unreadable,
        answering=service.answering,
        refusal=service.refusal,
        refused_settings=service.refused_settings,
        callers=tuple(Caller(entry.address, entry.form == "nodes") for entry in state.callers),
        guard_mode=guard.mode,
        guard_problem=guard.problem,
        certificate_expiry=float(expiry[1]) if expiry is not None else 0.0,
    )


# Objects that a request names before a cache has them.
_FETCHED = (
    resources.CLAIMS,
    resources.PERSISTENT_VOLUMES,
    resources.PODS,
    resources.STORAGE_CLASSES,
    resources.LONGHORN_VOLUMES,
)


def _permissions(
    resource: resources.Resource, *verbs: str, name: str = "", everywhere: bool = False
) -> list[Permission]:
    return [Permission(verb, resource.group, resource.plural, name, everywhere) for verb in verbs]


def _cache_permissions(resource: resources.Resource) -> list[Permission]:
    verbs = ("get", "list", "watch") if resource in _FETCHED else ("list", "watch")
    return _permissions(resource, *verbs, everywhere=resource.group != resources.LONGHORN_NODES.group)


PERMISSIONS = (
    *(permission for entry in cluster_cache.WATCHED for permission in _cache_permissions(entry.resource)),
    # Nudges.
    *_permissions(resources.PODS, "patch", everywhere=True),
    # The extender's own settings, and the open offers.
    *_permissions(resources.CONFIG_MAPS, "list", "watch", name=EXTENDER.name),
    *_permissions(resources.CONFIG_MAPS, "get", "patch", name=offer_store.CONFIG_MAP),
    # Leader election. `create` cannot be granted by name.
    *_permissions(resources.LEASES, "create"),
    *_permissions(resources.LEASES, "get", "update", name=LEASE_NAME),
    *_permissions(resources.ENDPOINT_SLICES, "create"),
    *(
        permission
        for service in (EXTENDER, PLACEMENT_GUARD, PLACEMENT_GUARD_STANDBY)
        for permission in _permissions(resources.ENDPOINT_SLICES, "delete", "get", "update", name=service.name)
    ),
    # The placement guard's certificate.
    *_permissions(resources.SECRETS, "get", "patch", name=PLACEMENT_GUARD.name),
    *_permissions(resources.MUTATING_WEBHOOKS, "get", "patch", name=PLACEMENT_GUARD.name, everywhere=True),
)
