"""No secret appears in a `repr`, a described setting, a log line or a file."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import time
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import AuthenticationFailed
from streamlog.log import Log
from streamlog.protocol.messages.sasl_acls_quotas import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from streamlog.protocol.messages.topics_and_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from streamlog.protocol.scram import ScramMechanism
from streamlog.transport.client_connection import TcpTransport
from streamlog.transport.security import Security
from tests.broker.node import Node, ask
from tests.broker.security.test_users import no_users, upsertion

SECRET = "white-rabbit-17"


def test_the_repr_of_a_message_shows_no_secret() -> None:
    data = SECRET.encode()
    shown = [
        SaslAuthenticateRequest(auth_bytes=data),
        SaslAuthenticateResponse(auth_bytes=data),
        upsertion(),
    ]
    salted = upsertion().salted_password
    for each in shown:
        assert SECRET not in repr(each)
        assert repr(salted) not in repr(each)
        assert "<secret>" in repr(each)


def test_settings_show_no_secret() -> None:
    config = BrokerConfig(security=SecurityConfig(key_password=SECRET))
    assert SECRET not in repr(config)
    security = Security(
        protocol="SASL_SSL", mechanism="PLAIN", user="alice", password=SECRET, key_password=SECRET
    )
    assert SECRET not in repr(security)

    async def story(broker: Broker) -> None:
        resource = DescribeConfigsResource(
            resource_type=4, resource_name="1", configuration_keys=["ssl.key.password"]
        )
        request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
        response = await ask(broker, request, DescribeConfigsResponse)
        (shown,) = response.results[0].configs
        assert shown.is_sensitive
        assert shown.value is None
        assert SECRET not in repr(response)

    Node(config=config).run(story)


def test_users_show_no_secret() -> None:
    users, _ = no_users().alter([], [upsertion()])
    credential = users.of("alice")[ScramMechanism.SCRAM_SHA_256]
    for name in ("salt", "stored_key", "server_key"):
        assert repr(getattr(credential, name)) not in repr(credential)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_logs_show_no_secret(mechanism: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        config = BrokerConfig(
            security=SecurityConfig(
                sasl_mechanisms="PLAIN,SCRAM-SHA-512", failed_authentication_delay_ms=0
            )
        )
        security = Security(
            protocol="SASL_PLAINTEXT", mechanism=mechanism, user="alice", password=SECRET
        )
        listener = Listener(protocol="SASL_PLAINTEXT")
        async with (
            Broker.open("data", config=config, files=MemoryFiles()) as broker,
            SocketServer(broker, [listener]) as listening,
        ):
            (server,) = listening.servers
            with pytest.raises(AuthenticationFailed) as caught:
                await TcpTransport.connect(
                    server.host, server.port, client_id="c", timeout_ms=60_000, security=security
                )
            assert SECRET not in str(caught.value)

    asyncio.run(main())
    assert "a wrong user or password" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "OAUTHBEARER"])
def test_a_login_leaves_no_secret_in_logs_files_or_reprs(
    mechanism: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """All log levels count, as do the broker's files and the client's `repr`."""
    caplog.set_level(logging.DEBUG)
    token = unsecured_token(sub="alice", exp=time.time() + 600)
    parts = {each for each in (SECRET, *token.split(".")) if each}

    async def main() -> None:
        data = str(tmp_path / "data")
        async with Log.open(f"embedded:{data}", listen=False) as log:
            await log.admin().set_password("alice", SECRET, iterations=4096)
        config = BrokerConfig(
            security=SecurityConfig(
                sasl_mechanisms="PLAIN,SCRAM-SHA-256,OAUTHBEARER", unsecured_tokens=True
            )
        )
        has_password = mechanism != "OAUTHBEARER"
        security = Security(
            protocol="SASL_PLAINTEXT",
            mechanism=mechanism,
            user="alice" if has_password else "",
            password=SECRET if has_password else "",
            token="" if has_password else token,
        )
        async with (
            Broker.open(data, config=config) as broker,
            SocketServer(broker, [Listener(protocol="SASL_PLAINTEXT")]) as listening,
        ):
            (server,) = listening.servers
            address = f"kafka://{server.host}:{server.port}"
            async with Log.open(address, security=security) as log, log.admin() as admin:
                assert "alice" in await admin.list_users()
                shown = repr([vars(log), vars(admin), security])
                assert not [part for part in parts if part in shown]

    asyncio.run(main())
    assert not [part for part in parts if part in caplog.text]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not [part for part in parts if part.encode() in data], path


def unsecured_token(**claims: object) -> str:
    """Return a token without a signature."""
    encoded = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in ({"alg": "none"}, claims)
    ]
    return ".".join([*encoded, ""])
