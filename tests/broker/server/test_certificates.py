"""Certificates that are replaced while a broker runs."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest
import trustme

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server.socket_server import Acceptor, SocketServer
from streamlog.broker.server.tls import Certificates
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.clock import ManualClock
from streamlog.errors import ConfigError
from streamlog.followed_files import LOOK_INTERVAL_MS
from streamlog.protocol.messages.cluster_metadata import ApiVersionsRequest
from tests.broker.server.test_tls import LISTENER, peer

FIRST, SECOND = trustme.CA(), trustme.CA()


def write(path: Path, authority: trustme.CA) -> None:
    """Replace the broker's certificate with a new one of `authority`."""
    fresh = path.with_name("fresh.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(fresh))
    fresh.replace(path)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.fixture
def keystore(tmp_path: Path) -> Path:
    path = tmp_path / "broker.pem"
    write(path, FIRST)
    return path


def test_new_connections_get_the_replaced_certificate(keystore: Path) -> None:
    clock = ManualClock()

    async def is_served(server: Acceptor, authority: trustme.CA) -> bool:
        try:
            async with peer(server, trusting(authority)) as one:
                one.ask(ApiVersionsRequest(), 1)
                await one.frame()
        except ssl.SSLCertVerificationError:
            return False
        return True

    async def main() -> None:
        config = BrokerConfig(security=SecurityConfig(keystore=str(keystore)))
        async with (
            Broker.open("data", config=config, files=MemoryFiles(), clock=clock) as broker,
            SocketServer(broker, [LISTENER]) as listening,
        ):
            (server,) = listening.servers
            async with peer(server, trusting(FIRST)) as old:
                write(keystore, SECOND)
                assert await is_served(server, FIRST), "the files are checked only at intervals"
                clock.advance(LOOK_INTERVAL_MS)
                assert await is_served(server, SECOND)
                assert not await is_served(server, FIRST)
                old.ask(ApiVersionsRequest(), 1)
                await old.frame()

    asyncio.run(main())


def test_unusable_files_keep_the_previous_certificates(
    keystore: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    certificates = Certificates(SecurityConfig(keystore=str(keystore)), clock)
    before = certificates.context()

    def later() -> ssl.SSLContext:
        clock.advance(LOOK_INTERVAL_MS)
        return certificates.context()

    whole = keystore.read_bytes()
    with caplog.at_level(logging.INFO):
        keystore.write_bytes(whole[: len(whole) // 2])
        assert later() is before
        assert later() is before
        keystore.unlink()
        assert later() is before
        lines = [record.getMessage() for record in caplog.records]
        assert len(lines) == 2, "each change is logged once"
        assert all("keeping the previous ones" in each for each in lines)
        assert "PRIVATE KEY" not in caplog.text
        keystore.write_bytes(whole)
        after = later()
        assert after is not before
        assert later() is after
    assert "reloaded the certificates" in caplog.text


def test_a_replaced_truststore_is_reloaded(keystore: Path, tmp_path: Path) -> None:
    truststore = tmp_path / "authority.pem"
    FIRST.cert_pem.write_to_path(str(truststore))
    clock = ManualClock()
    config = SecurityConfig(
        keystore=str(keystore), truststore=str(truststore), client_auth="required"
    )
    certificates = Certificates(config, clock)
    (before,) = certificates.context().get_ca_certs()
    SECOND.cert_pem.write_to_path(str(truststore))
    clock.advance(LOOK_INTERVAL_MS)
    (after,) = certificates.context().get_ca_certs()
    assert before["serialNumber"] != after["serialNumber"]


def test_a_missing_keystore_at_the_start_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.location"):
        Certificates(SecurityConfig(keystore=str(tmp_path / "none.pem")), ManualClock())
