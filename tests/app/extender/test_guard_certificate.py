"""Who makes, renews and serves the placement guard's certificate, against an API server in memory with an injected clock."""

import asyncio
import copy
import json
import ssl
from base64 import b64decode
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from app.extender import guard_certificate
from app.extender.guard_certificate import (
    AUTHORITY_VALIDITY,
    CERT_MANAGER,
    CHAIN_KEY,
    NAME,
    SERVING_KEY_KEY,
    TRUSTED_AFTER,
    CertificateOptions,
    GuardCertificate,
    decode_certificates,
    issue,
)
from app.extender.metrics import Metrics
from app.kube.client import KubeClient
from app.runtime.probes import PREFIX
from devcluster.pki import CertificateAuthority
from tests.worlds.fake_api import failing, serve, silent, until
from tests.worlds.guard_api import CONFIGURATION, NAMESPACE, SECRET, GuardApi
from tests.worlds.stopwatch import Stopwatch
from tests.worlds.tls import client_context, serial_shown

HOST = f"{NAME}.{NAMESPACE}.svc"


class Candidate:
    """One process, whose lead, setting and clock belong to the test."""

    def __init__(self, client: KubeClient, *, leads: bool) -> None:
        self.leads = leads
        self.next_answers: list[bool] = []
        self.wanted = True
        self.time = datetime.now(UTC)
        self.metrics = Metrics()
        options = CertificateOptions(NAMESPACE, lambda: self.wanted, self._is_leading, lambda: self.time)
        self.certificate = GuardCertificate(client, options, self.metrics)

    def _is_leading(self) -> bool:
        return self.next_answers.pop(0) if self.next_answers else self.leads

    async def check(self) -> None:
        """Compares once, as `run` does at an interval."""
        await self.certificate.check()

    async def serial(self, bundle: bytes, *, strict: bool = True) -> int:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=self.context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await asyncio.to_thread(serial_shown, port, client_context(bundle, strict=strict), HOST)

    @property
    def context(self) -> ssl.SSLContext:
        return self.certificate.context


class World:
    """An API server, and candidates that call it."""

    def __init__(self, client: KubeClient, api: GuardApi) -> None:
        self._client = client
        self.api = api

    def candidate(self, *, leads: bool = True) -> Candidate:
        return Candidate(self._client, leads=leads)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """An API server with an empty Secret, and a webhook configuration without a caBundle."""
    api = GuardApi()
    async with serve(api.handle, tmp_path) as kubeconfig, await KubeClient.connect(str(kubeconfig)) as client:
        yield World(client, api)


async def test_the_leader_makes_the_certificate_and_clients_trust_it(world: World) -> None:
    """The Secret comes first, so that two leaders in a row agree on one authority."""
    leader = world.candidate()
    assert not leader.certificate.ready
    await leader.check()
    assert world.api.writes == [SECRET, CONFIGURATION]
    assert (leader.certificate.ready, leader.certificate.problem) == (True, "")
    assert await leader.serial(world.api.bundle) > 0
    expiry = leader.metrics.registry.get_sample_value(f"{PREFIX}_placement_guard_certificate_expiry_timestamp_seconds")
    assert expiry == pytest.approx((leader.time + timedelta(days=90)).timestamp(), abs=1)
    await leader.check()
    assert world.api.writes == [SECRET, CONFIGURATION]


async def test_another_candidate_serves_the_same_certificate_and_writes_nothing(world: World) -> None:
    leader = world.candidate()
    follower = world.candidate(leads=False)
    await follower.check()
    assert follower.certificate.problem == f"Secret {NAME}: it is empty; the leader makes the certificate"
    assert not follower.certificate.ready
    await leader.check()
    del world.api.writes[:]
    await follower.check()
    assert (follower.certificate.ready, follower.certificate.problem, world.api.writes) == (True, "", [])
    assert await follower.serial(world.api.bundle) == await leader.serial(world.api.bundle)


async def test_while_the_guard_is_off_nothing_is_read_or_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_certificate, "_IDLE_INTERVAL", 0.01)
    leader = world.candidate()
    leader.wanted = False
    running = asyncio.create_task(leader.certificate.run())
    await asyncio.sleep(0.1)
    assert (world.api.requests, leader.certificate.problem) == (0, "")
    leader.wanted = True
    await until("the certificate", lambda: leader.certificate.ready and world.api.bundle)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_new_leader_checks_at_once(world: World) -> None:
    candidate = world.candidate(leads=False)
    running = asyncio.create_task(candidate.certificate.run())
    await until("the first check", lambda: world.api.requests == 1)
    candidate.leads = True
    stopwatch = Stopwatch()
    candidate.certificate.adopt()
    await until("the certificate", lambda: candidate.certificate.ready)
    assert stopwatch.seconds < guard_certificate.RETRY_INTERVAL
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_serving_certificate_is_renewed_after_two_thirds_of_its_life(world: World) -> None:
    """The authority stays, so that clients need no other caBundle; the other candidate follows."""
    leader = world.candidate()
    follower = world.candidate(leads=False)
    # The client's clock is the real one.
    leader.time -= timedelta(days=61)
    await leader.check()
    bundle = world.api.bundle
    first = await leader.serial(bundle)
    del world.api.writes[:]
    leader.time += timedelta(days=61)
    follower.time = leader.time
    await leader.check()
    await follower.check()
    assert world.api.writes == [SECRET]
    assert await leader.serial(bundle) == await follower.serial(bundle) != first
    assert world.api.bundle == bundle


async def test_a_certificate_that_expired_while_no_process_ran_is_renewed_at_start(world: World) -> None:
    world.api.data = issue(HOST, datetime.now(UTC) - timedelta(days=100)).encode()
    follower = world.candidate(leads=False)
    await follower.check()
    assert "the serving certificate expired at" in follower.certificate.problem
    assert not follower.certificate.ready
    leader = world.candidate()
    await leader.check()
    assert leader.certificate.ready
    assert await leader.serial(world.api.bundle) > 0


async def test_a_certificate_that_cannot_be_renewed_is_served_until_it_expires(world: World) -> None:
    leader = world.candidate()
    await leader.check()
    world.api.always["GET", SECRET] = failing(503, "no")
    leader.time += timedelta(days=89)
    await leader.check()
    assert leader.certificate.problem.startswith(f"GET {SECRET}: no (HTTP 503)")
    assert leader.certificate.ready
    leader.time += timedelta(days=1)
    assert not leader.certificate.ready


async def test_a_new_authority_is_trusted_before_it_signs_what_is_served(world: World) -> None:
    leader = world.candidate()
    leader.time -= AUTHORITY_VALIDITY * 2 / 3 + timedelta(days=1)
    await leader.check()
    leader.time += AUTHORITY_VALIDITY * 2 / 3 + timedelta(days=1)
    # The certificate has been renewed all the time.
    stored = decode_certificates(world.api.data)
    world.api.data = stored.renew_serving(HOST, leader.time).encode()
    before = world.api.bundle
    del world.api.writes[:]
    await leader.check()
    assert world.api.writes == [CONFIGURATION]
    assert world.api.bundle.endswith(before)
    assert world.api.bundle != before
    first = await leader.serial(before)
    leader.time += TRUSTED_AFTER - timedelta(seconds=1)
    await leader.check()
    assert await leader.serial(before) == first
    leader.time += timedelta(seconds=1)
    await leader.check()
    assert world.api.writes == [CONFIGURATION, SECRET]
    assert await leader.serial(world.api.bundle) != first
    with pytest.raises(ssl.SSLCertVerificationError):
        await leader.serial(before)
    await leader.check()
    assert world.api.writes == [CONFIGURATION, SECRET]


async def test_an_authority_that_was_announced_by_a_former_leader_is_forgotten(world: World) -> None:
    """Its key is lost; the next leader announces another one."""
    former = world.candidate()
    made = issue(HOST, former.time - AUTHORITY_VALIDITY * 2 / 3 - timedelta(days=1))
    world.api.data = made.renew_serving(HOST, former.time).encode()
    await former.check()
    announced = world.api.bundle
    former.leads = False
    former.certificate.clear()
    leader = world.candidate()
    leader.time = former.time
    await leader.check()
    assert world.api.bundle.endswith(made.bundle)
    assert world.api.bundle != announced
    former.leads = True
    former.certificate.adopt()
    former.time += TRUSTED_AFTER
    await former.check()
    assert SECRET not in world.api.writes


async def test_without_any_usable_certificate_a_new_authority_is_used_at_once(world: World) -> None:
    leader = world.candidate()
    world.api.data = issue(HOST, leader.time - AUTHORITY_VALIDITY - timedelta(days=1)).encode()
    await leader.check()
    assert world.api.writes == [SECRET, CONFIGURATION]
    assert leader.certificate.ready
    assert await leader.serial(world.api.bundle) > 0


async def test_a_ca_bundle_that_was_edited_is_written_again_and_nothing_else_is(world: World) -> None:
    leader = world.candidate()
    await leader.check()
    bundle = world.api.bundle
    expected = copy.deepcopy(world.api.objects[CONFIGURATION]["webhooks"])
    for edited in ("", "Z2FyYmFnZQ=="):
        world.api.objects[CONFIGURATION]["webhooks"][1]["clientConfig"]["caBundle"] = edited
        await leader.check()
        assert world.api.bundle == bundle
        assert world.api.objects[CONFIGURATION]["webhooks"] == expected


def foreign_certificate(folder: Path) -> dict[str, bytes]:
    """The content of a Secret as cert-manager writes it."""
    authority = CertificateAuthority.create(folder / "pki")
    pair = authority.server("guard", (HOST,))
    return {
        CHAIN_KEY: pair.certificate.read_bytes(),
        SERVING_KEY_KEY: pair.key.read_bytes(),
        "ca.crt": authority.bundle.read_bytes(),
    }


@pytest.mark.parametrize("content", ["other key", "garbage", "foreign"])
async def test_a_secret_that_holds_something_else_is_never_overwritten(
    world: World, tmp_path: Path, content: str
) -> None:
    made = issue(HOST, datetime.now(UTC)).encode()
    foreign = foreign_certificate(tmp_path)
    damage = {
        "other key": {SERVING_KEY_KEY: issue(HOST, datetime.now(UTC)).encode()[SERVING_KEY_KEY]},
        "garbage": dict.fromkeys(made, b"\xff\x00"),
        "foreign": {key: foreign[key] for key in (CHAIN_KEY, "ca.crt")},
    }
    world.api.data = {**made, **damage[content]}
    leader = world.candidate()
    with capture_logs() as lines:
        await leader.check()
        await leader.check()
    assert world.api.writes == []
    assert not leader.certificate.ready
    assert leader.certificate.problem.startswith(f"Secret {NAME}: ")
    assert [(line["log_level"], line["problem"]) for line in lines] == [("warning", leader.certificate.problem)]
    world.api.data = {}
    await leader.check()
    assert leader.certificate.ready


async def test_cert_managers_secret_is_only_read(world: World, tmp_path: Path) -> None:
    world.api.objects[SECRET]["metadata"]["annotations"] = {CERT_MANAGER: "guard"}
    leader = world.candidate()
    await leader.check()
    assert leader.certificate.problem == f"Secret {NAME}: tls.crt is missing"
    world.api.data = data = foreign_certificate(tmp_path)
    await leader.check()
    assert (leader.certificate.ready, leader.certificate.problem, world.api.writes) == (True, "", [])
    assert await leader.serial(data["ca.crt"], strict=False) > 0
    leader.time += timedelta(days=366)
    await leader.check()
    assert "expired" in leader.certificate.problem
    assert world.api.writes == []


@pytest.mark.parametrize(("leads", "problem"), [(True, "it has no webhook"), (False, "")])
async def test_a_missing_webhook_is_a_problem_of_the_leader_with_cert_manager_too(
    world: World, tmp_path: Path, leads: bool, problem: str
) -> None:
    world.api.objects[SECRET]["metadata"]["annotations"] = {CERT_MANAGER: "guard"}
    world.api.data = foreign_certificate(tmp_path)
    world.api.objects[CONFIGURATION]["webhooks"] = []
    candidate = world.candidate(leads=leads)
    await candidate.check()
    assert problem in candidate.certificate.problem
    assert bool(candidate.certificate.problem) is leads
    assert candidate.certificate.ready


@pytest.mark.parametrize(("missing", "written"), [(SECRET, []), (CONFIGURATION, [SECRET])])
async def test_a_missing_object_is_a_problem_that_names_the_manifests(
    world: World, missing: str, written: list[str]
) -> None:
    raw = world.api.objects.pop(missing)
    leader = world.candidate()
    await leader.check()
    assert missing in leader.certificate.problem
    assert leader.certificate.problem.endswith("apply manifests/base")
    assert world.api.writes == written
    world.api.put(missing, raw)
    await leader.check()
    assert leader.certificate.problem == ""


@pytest.mark.parametrize("webhook", [guard_certificate.WEBHOOK, guard_certificate.STANDBY_WEBHOOK])
async def test_a_configuration_without_a_webhook_is_a_problem(world: World, webhook: str) -> None:
    """A patch would add an incomplete one; the manifests are of an earlier version."""
    configuration = world.api.objects[CONFIGURATION]
    configuration["webhooks"] = [entry for entry in configuration["webhooks"] if entry["name"] != webhook]
    leader = world.candidate()
    await leader.check()
    assert f"it has no webhook {webhook}" in leader.certificate.problem


@pytest.mark.parametrize("path", [SECRET, CONFIGURATION])
async def test_a_leader_overtaken_between_reading_and_writing_does_not_overwrite(world: World, path: str) -> None:
    leader = world.candidate()
    if path == CONFIGURATION:
        await leader.check()
        world.api.objects[CONFIGURATION]["webhooks"][1]["clientConfig"]["caBundle"] = ""
        del world.api.writes[:]
    successors = issue(HOST, leader.time)

    def overtake() -> None:
        world.api.data = successors.encode()
        world.api.put(CONFIGURATION, world.api.objects[CONFIGURATION])

    world.api.before_write = overtake
    await leader.check()
    assert world.api.writes == []
    assert leader.certificate.problem
    world.api.before_write = None
    await leader.check()
    assert leader.certificate.problem == ""
    assert world.api.data == successors.encode()
    assert world.api.bundle == successors.bundle


async def test_a_process_that_lost_the_lead_meanwhile_does_not_write(world: World) -> None:
    leader = world.candidate()
    leader.next_answers = [True, False]
    await leader.check()
    assert world.api.writes == []
    assert "another process leads now" in leader.certificate.problem


async def test_an_api_server_that_does_not_answer_is_a_problem(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_certificate, "CALL_SECONDS", 0.1)
    world.api.always["GET", SECRET] = silent
    leader = world.candidate()
    assert await leader.certificate.check() == guard_certificate.RETRY_INTERVAL
    assert leader.certificate.problem == f"GET {SECRET}: no answer within 0.1 s"


async def test_no_log_line_and_no_problem_holds_a_key(world: World) -> None:
    quoted: list[str] = []

    async def quote(request: web.Request) -> web.StreamResponse:
        quoted.append((await request.read()).decode())
        return await failing(422, f"invalid: {quoted[-1]}", "Invalid")(request)

    leader = world.candidate()
    world.api.always["PATCH", SECRET] = quote
    with capture_logs() as lines:
        await leader.check()
    assert leader.certificate.problem == f"Secret {NAME}: it cannot be written: HTTP 422 Invalid"
    del world.api.always["PATCH", SECRET]
    with capture_logs() as more_lines:
        await leader.check()
    contents = [*json.loads(quoted[0])["data"].values(), *world.api.objects[SECRET]["data"].values()]
    pieces = {text[start : start + 40] for text in contents for start in range(0, len(text) - 40, 40)}
    pem = {line.decode() for text in contents for line in b64decode(text).splitlines() if b"-----" not in line}
    text = f"{lines} {more_lines}"
    assert len(lines) + len(more_lines) >= 3
    assert not [piece for piece in pieces | pem if piece in text]
