"""TLS, passwords and ACLs of the registry, and the addresses that it dares to listen on."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.client.admin.security_admin import Acl
from streamlog.errors import ConfigError, SchemaRegistryError
from streamlog.log import Log
from streamlog.protocol.acls import Operation, Pattern, Permission, ResourceType
from streamlog.registry.rest_server import check_exposure
from streamlog.registry.running_registry import serve_if_configured
from streamlog.registry_client import RegistryClient, RegistrySettings
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.registered.framing import SchemaKey
from tests.broker.certificates import certificates
from tests.registry.running import RunningRegistry, run_registry

V1 = {"schema": '"int"'}


def basic(user: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningRegistry]:
    data = tmp_path_factory.mktemp("secured")

    async def prepare() -> None:
        config = BrokerConfig().override({"authorizer.class.name": "standard"})
        async with Log.open(f"embedded:{data}", config=config) as log:
            admin = log.admin()
            for user in ("alice", "bob", "root"):
                await admin.set_password(user, f"{user}-secret", iterations=4096)
            await admin.create_acls([acl("alice", Operation.WRITE), acl("bob", Operation.READ)])

    asyncio.run(prepare())
    settings = {
        "schema.registry.ssl.enable": "true",
        "schema.registry.authentication.method": "BASIC",
        "ssl.keystore.location": certificates().broker,
        "authorizer.class.name": "standard",
        "super.users": "User:root",
    }
    context = ssl.create_default_context(cafile=certificates().authority)
    with run_registry(data, settings, context) as running:
        assert running.url.startswith("https://127.0.0.1:")
        yield running


def acl(user: str, operation: Operation) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        name="orders",
        pattern=Pattern.LITERAL,
        principal=f"User:{user}",
        host="*",
        operation=operation,
        permission=Permission.ALLOW,
    )


def test_a_client_has_to_prove_its_password(secured: RunningRegistry) -> None:
    for headers in (
        {},
        {"authorization": "Bearer x"},
        {"authorization": "Basic !!!"},
        basic("alice", "wrong"),
        basic("nobody", "alice-secret"),
        basic("alice", ""),
    ):
        refused = secured.ask("GET", "/subjects", headers=headers)
        assert (refused.status, refused.code) == (401, 401)
        assert refused.headers["www-authenticate"].startswith("Basic")
    for _ in range(2):
        headers = basic("alice", "alice-secret")
        assert secured.ask("GET", "/subjects", headers=headers).status == 200


def test_acls_of_the_topic_hold_for_its_subjects(secured: RunningRegistry) -> None:
    alice, bob = basic("alice", "alice-secret"), basic("bob", "bob-secret")
    root = basic("root", "root-secret")

    def status(method: str, path: str, user: dict[str, str], body: object = None) -> int:
        return secured.ask(method, path, body, headers=user).status

    assert status("POST", "/subjects/orders-value/versions", alice, V1) == 200
    assert status("POST", "/subjects/other-value/versions", alice, V1) == 403
    assert status("POST", "/subjects/orders-value/versions", bob, V1) == 403
    assert status("GET", "/subjects/orders-value/versions/1", bob) == 200
    assert status("DELETE", "/subjects/orders-value", alice) == 403
    assert status("PUT", "/config/orders-value", alice, {"compatibility": "NONE"}) == 403
    assert status("GET", "/config", bob) == 403
    assert status("POST", "/subjects/hidden/versions", root, {"schema": '"long"'}) == 200
    assert status("PUT", "/config", root, {"compatibility": "NONE"}) == 200
    assert secured.ask("GET", "/subjects", headers=bob).content == ["orders-value"]
    assert secured.ask("GET", "/subjects", headers=root).content == ["hidden", "orders-value"]
    # An id is as visible as its subjects.
    assert status("GET", "/schemas/ids/1", bob) == 200
    assert status("GET", "/schemas/ids/2", bob) == 404
    assert status("GET", "/schemas/ids/2", root) == 200
    # An alias does not open what it stands for.
    assert status("PUT", "/config/orders-key", root, {"alias": "hidden"}) == 200
    assert status("GET", "/subjects/orders-key/versions", bob) == 403


def test_a_client_with_tls_and_a_password_uses_it(secured: RunningRegistry) -> None:
    given = {"schema.registry.url": secured.url, "ssl.ca.location": certificates().authority}
    client = RegistryClient(
        RegistrySettings.of({**given, "basic.auth.user.info": "root:root-secret"})
    )
    found = client.register("tls", Schema(SchemaType.AVRO, '"bytes"'))
    assert client.find(SchemaKey(found)).schema.text == '"bytes"'
    with pytest.raises(SchemaRegistryError, match="Unauthorized") as caught:
        RegistryClient(RegistrySettings.of(given)).latest("tls")
    assert caught.value.status == 401
    other = {**given, "ssl.ca.location": certificates().stranger_authority}
    with pytest.raises(SchemaRegistryError, match="is not trusted"):
        RegistryClient(RegistrySettings.of(other)).latest("tls")


@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.1.2.3:1", "example.org:1", "[::]:1"])
def test_others_reach_a_registry_only_with_tls_and_passwords(address: str) -> None:
    with pytest.raises(ConfigError, match=r"needs schema\.registry\.ssl\.enable=true"):
        check_exposure(address, is_secure=False)
    check_exposure(address, is_secure=True)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "localhost:1", "[::1]:1", ":1"])
def test_this_machine_reaches_it_without(address: str) -> None:
    check_exposure(address, is_secure=False)


def test_a_wrong_address_is_an_error_that_names_the_setting(tmp_path: Path) -> None:
    config = BrokerConfig().override({"schema.registry.listener": "nowhere"})

    async def main() -> None:
        async with Broker.open(str(tmp_path), config=config) as broker, serve_if_configured(broker):
            pass

    with pytest.raises(ConfigError, match=r"schema\.registry\.listener='nowhere' is not HOST:PORT"):
        asyncio.run(main())
