"""Who may use the REST API: passwords and TLS, between workers as from clients."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from streamlog.cli.operate.connectors_command import ConnectAnswer, connectors
from streamlog.cli.session import Session
from streamlog.connect import names
from streamlog.connect_service.service_files import listener_of, rest_access
from streamlog.errors import ConfigError, ConnectionLost
from streamlog.http_access import user_file
from streamlog.http_access.access_settings import HttpAccess
from streamlog.http_access.guarded_server import trusting
from streamlog.http_access.peer_signatures import signed_headers
from streamlog.http_access.user_file import set_user
from streamlog.log import Log
from streamlog.worker.web.peer_http import PeerCall, call_peer
from tests.broker.certificates import certificates
from tests.connect_service.outside import WRITTEN
from tests.connect_service.running import Client, worker_with_http

SOURCE = {"connector.class": "Numbers", "topic": "numbers", "tasks.max": "2", "count": "5"}


@pytest.fixture
def access(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HttpAccess:
    monkeypatch.setattr(user_file, "COST", (16, 8, 1))
    monkeypatch.setattr(names, "BUILT_IN", {"Numbers": "tests.connect_service.outside"})
    WRITTEN.clear()
    users, files = tmp_path / "users", certificates()
    set_user(users, "ann", "wonder:land")
    return HttpAccess(users_file=str(users), certificate=files.broker, ca=files.authority)


async def asked(
    client: Client, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, bytes]:
    """Ask a worker over HTTPS."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    call = PeerCall(method=method, target=target, headers=named, body=body)
    tls = trusting(certificates().authority)
    return await call_peer(client.service.worker_id, call, answer_bytes_max=1_000_000, tls=tls)


ANN = "Basic " + b64encode(b"ann:wonder:land").decode()
EVE = "Basic " + b64encode(b"ann:guess").decode()


def test_workers_with_users_and_tls_answer_those_alone_who_log_in(
    tmp_path: Path, access: HttpAccess
) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(asyncio.timeout(60))
            log = await stack.enter_async_context(Log.open(f"embedded:{tmp_path / 'log'}"))
            a = await stack.enter_async_context(worker_with_http(log, access))
            b = await stack.enter_async_context(worker_with_http(log, access))
            await a.until(lambda: len(b.service.group.peers) == 2 and b.service.keys.is_known)
            leader = a if a.service.herder.is_leader else b
            follower = b if leader is a else a
            await _refuses(follower)
            await _is_closed_to_forged_signatures(leader)
            # Sent on to the leader over TLS, signed and without a password.
            body = b'{"connector.class":"Numbers","topic":"numbers","count":"5"}'
            put = await asked(follower, "PUT", "/connectors/in/config", body, authorization=ANN)
            assert put[0] == 201, put
            await a.until_state("in", "RUNNING")
            await _is_operated_by_command(tmp_path, follower)

    asyncio.run(main())


async def _refuses(client: Client) -> None:
    for method, target in (
        ("GET", "/"), ("GET", "/connectors"), ("POST", "/connectors"), ("DELETE", "/connectors/x"),
        ("PUT", "/admin/loggers/root"), ("GET", "/health/"), ("POST", "/health"),
    ):  # fmt: skip
        assert (await asked(client, method, target))[0] == 401, target
    status, body = await asked(client, "GET", "/connectors", authorization=EVE)
    assert (status, b'"error_code":401' in body) == (401, True)
    # More than any body may have: refused by the password, before it is read.
    assert (await asked(client, "POST", "/connectors", bytes(1_000)))[0] == 401
    assert (await asked(client, "GET", "/health"))[0] == 200
    assert (await asked(client, "GET", "/connectors", authorization=ANN)) == (200, b"[]")
    # A browser may know the password: a page of another site changes nothing by it.
    restart = "/connectors/x/restart"
    for origin, answered in (
        ("https://evil.example", 403),
        ("null", 403),
        (f"https://{client.service.worker_id}", 404),
    ):
        found = await asked(client, "POST", restart, authorization=ANN, origin=origin)
        assert found[0] == answered, origin
    # In plain text there is no answer at all.
    call = PeerCall(method="GET", target="/health")
    with pytest.raises((OSError, Exception), match=r"(?i)closed|reset|illegal"):
        await call_peer(client.service.worker_id, call, answer_bytes_max=1_000)
    with pytest.raises(ssl.SSLCertVerificationError):
        await call_peer(
            client.service.worker_id,
            call,
            answer_bytes_max=1_000,
            tls=trusting(certificates().stranger_authority),
        )


async def _is_closed_to_forged_signatures(leader: Client) -> None:
    clock = leader.service.task_clock
    target, body = "/connectors/in/config", b'{"connector.class":"Numbers"}'
    for key in (b"", bytes(32)):
        forged = signed_headers(key, "PUT", target, body, wall_ms=clock.wall_ms())
        call = PeerCall(method="PUT", target=target, headers=forged, body=body)
        tls = trusting(certificates().authority)
        status, answer = await call_peer(
            leader.service.worker_id, call, answer_bytes_max=1_000_000, tls=tls
        )
        assert (status, b"none of the group's session keys" in answer) == (403, True)
    own = leader.service.keys.sign("PUT", target, body)
    # Right for this request, and for no other: neither another method nor another body.
    call = PeerCall(method="DELETE", target="/connectors/in", headers=own)
    status, _ = await call_peer(
        leader.service.worker_id, call, answer_bytes_max=1_000_000,
        tls=trusting(certificates().authority),
    )  # fmt: skip
    assert status == 403
    assert (await leader.get("/connectors")) == []


async def _is_operated_by_command(directory: Path, client: Client) -> None:
    url, secret = f"https://{client.service.worker_id}", directory / "secret"
    secret.write_text("wonder:land\n")
    base = ["--ca", certificates().authority]

    async def invoke(*options: str, password: str | None = None) -> object:
        env = {} if password is None else {"STREAMLOG_CONNECT_PASSWORD": password}
        result = await asyncio.to_thread(
            CliRunner().invoke, connectors, [*options, "list", "--connect", url],
            obj=Session(), env=env,
        )  # fmt: skip
        return result.exception or result.output

    for options, password in (
        ([*base, "--user", "ann"], "wonder:land"),
        ([*base, "--user", "ann", "--password-file", str(secret)], None),
    ):
        output = await invoke(*options, password=password)
        assert "RUNNING" in str(output), output
    assert isinstance(await invoke(*base), ConnectAnswer)
    assert isinstance(await invoke(*base, "--user", "ann", password="no"), ConnectAnswer)
    missing = await invoke(*base, "--user", "ann")
    assert isinstance(missing, ConfigError)
    assert "STREAMLOG_CONNECT_PASSWORD" in str(missing)
    distrusting = await invoke("--user", "ann", password="wonder:land")
    assert isinstance(distrusting, ConnectionLost)
    assert "certificate" in str(distrusting).lower()


FILES = {
    "listeners": "https://0.0.0.0:8443",
    "listeners.https.ssl.keystore.location": "worker.pem",
    "listeners.https.ssl.truststore.location": "ca.pem",
}


def test_a_worker_file_says_how_the_api_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "opened")

    def read(**given: str) -> HttpAccess:
        named = {name.replace("_", "."): value for name, value in given.items()}
        return rest_access({**FILES, **named}, users_file="users", is_insecure=False)

    assert read(ssl_key_password="${env:KEY}") == HttpAccess(
        users_file="users", certificate="worker.pem", key_password="opened", ca="ca.pem"
    )
    assert read(listeners_https_ssl_client_auth="required").needs_client_certificate
    assert listener_of(FILES) == "0.0.0.0:8443"
    # Without a listener of its own, --rest has it.
    without = {name: value for name, value in FILES.items() if name != "listeners"}
    assert rest_access(without, users_file="", is_insecure=False).scheme == "https"
    assert read(listeners="http://127.0.0.1:8083").scheme == "http"
    # `ssl.*` alone is about the connection to the brokers.
    brokers = {"ssl.keystore.location": "client.pem"}
    assert rest_access(brokers, users_file="", is_insecure=False).scheme == "http"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"listeners": "https://:8443"}, "needs listeners.https.ssl.keystore.location"),
        ({"listeners": "0.0.0.0:8083"}, "neither http://HOST:PORT nor https://"),
        ({**FILES, "ssl.keystore.type": "JKS"}, "PEM"),
        ({**FILES, "ssl.client.auth": "requested"}, "neither none nor required"),
        ({"rest.extension.classes": "org.example.BasicAuth"}, "--rest-users FILE"),
        ({**FILES, "ssl.key.password": "${env:NOT_SET_AT_ALL}"}, "NOT_SET_AT_ALL"),
    ],
)
def test_what_a_worker_file_can_not_have_is_refused(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        rest_access(given, users_file="", is_insecure=True)
