"""Which addresses need a login, and TLS with files that change: against real connections."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

from streamlog.errors import ConfigError
from streamlog.http_access.access_settings import OPEN_ACCESS, HttpAccess
from streamlog.http_access.guarded_server import (
    check_exposure,
    https_context,
    peer_context,
    trusting,
)
from streamlog.http_server import listen, serve
from tests.broker.certificates import certificates
from tests.http_access.test_user_file import ManualClock
from tests.test_http_server import say_hello, site

USERS, TLS = HttpAccess(users_file="users"), HttpAccess(certificate="a.pem")
BOTH = HttpAccess(users_file="users", certificate="a.pem")
CERTIFIED = HttpAccess(certificate="a.pem", ca="ca.pem", needs_client_certificate=True)
INSECURE = HttpAccess(is_insecure=True)
OTHERS = ("0.0.0.0:1", "[::]:1", "10.0.0.5:1", "worker.example:1", "127.evil.example:1")
OWN = ("127.0.0.1:1", ":1", "localhost:1", "[::1]:1", "127.8.8.8:1")


@pytest.mark.parametrize("setting", ["rest", "web"])
def test_an_address_that_others_reach_needs_users_and_tls(setting: str) -> None:
    for address in OTHERS:
        for access, lacks in ((OPEN_ACCESS, "users"), (TLS, "users"), (USERS, "TLS")):
            with pytest.raises(ConfigError, match=rf"needs.* {lacks} ") as error:
                check_exposure(address, access, setting=setting)
            assert f"--{setting}-insecure" in str(error.value)
        for access in (BOTH, CERTIFIED, INSECURE):
            check_exposure(address, access, setting=setting)
    for address in OWN:
        check_exposure(address, OPEN_ACCESS, setting=setting)


async def shown_to(context: ssl.SSLContext, port: int) -> bytes:
    """Return the certificate that a server shows; DER."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found
    finally:
        writer.close()


def test_a_certificate_that_is_replaced_is_shown_from_then_on(tmp_path: Path) -> None:
    authority, clock, path = trustme.CA(), ManualClock(), tmp_path / "worker.pem"
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def renew() -> None:
        made = authority.issue_cert("127.0.0.1")
        made.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "new"))
        (tmp_path / "new").replace(path)

    async def main() -> None:
        renew()
        access = HttpAccess(certificate=str(path), ca=str(tmp_path / "ca.pem"))
        trusted = peer_context(access)
        assert trusted is not None
        with listen(":0") as listener:
            async with serve(site(say_hello), listener, tls=https_context(access, clock)):
                first = await shown_to(trusted, listener.port)
                renew()
                assert await shown_to(trusted, listener.port) == first, "once a second at most"
                clock.ms += 1_000
                second = await shown_to(trusted, listener.port)
                assert second != first
                path.write_text("no certificate")
                clock.ms += 1_000
                assert await shown_to(trusted, listener.port) == second
                stranger = trusting(certificates().stranger_authority)
                with pytest.raises(ssl.SSLCertVerificationError):
                    await shown_to(stranger, listener.port)

    asyncio.run(main())


def test_clients_without_a_certificate_are_refused_if_one_is_required() -> None:
    files = certificates()
    access = HttpAccess(certificate=files.broker, ca=files.authority, needs_client_certificate=True)

    async def ask(context: ssl.SSLContext, port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            return await reader.read()
        finally:
            writer.close()

    async def main() -> None:
        with listen(":0") as listener:
            tls = https_context(access, ManualClock())
            async with serve(site(say_hello), listener, tls=tls):
                peer = peer_context(access)
                assert peer is not None
                assert b"200 OK" in await ask(peer, listener.port)
                # TLS 1.3 tells a client so with the first bytes that it reads, or never.
                answer = b""
                with suppress(OSError):
                    answer = await ask(trusting(files.authority), listener.port)
                assert answer == b""

    asyncio.run(main())


def test_files_that_can_not_be_used_are_named(tmp_path: Path) -> None:
    files, clock = certificates(), ManualClock()
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    for path in (str(wrong), str(tmp_path / "missing.pem"), files.authority):
        with pytest.raises(ConfigError, match=path):
            https_context(HttpAccess(certificate=path), clock)
    for path in (str(wrong), str(tmp_path / "missing.pem")):
        with pytest.raises(ConfigError, match=path):
            peer_context(HttpAccess(certificate=files.broker, ca=path))
    with pytest.raises(ConfigError, match=r"needs ssl.truststore.location"):
        https_context(HttpAccess(certificate=files.broker, needs_client_certificate=True), clock)
    assert https_context(OPEN_ACCESS, clock) is None
    assert peer_context(OPEN_ACCESS) is None
    shutil.copy(files.broker, tmp_path / "copied.pem")
    assert https_context(HttpAccess(certificate=str(tmp_path / "copied.pem")), clock) is not None
