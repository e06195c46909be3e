"""The keys that verify tokens: from a file or a server, loaded again when a key is missing."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server import jwk_set
from streamlog.broker.server.jwk_set import JwkSet
from streamlog.broker.server.socket_server import SocketServer
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import AuthenticationFailed, ConfigError
from streamlog.protocol.messages.cluster_metadata import MetadataRequest, MetadataResponse
from streamlog.transport.client_connection import TcpTransport
from streamlog.transport.security import Security
from tests.broker.server.test_socket_server import until

REFRESH_MS = 3_600_000
KEYS = {name: rsa.generate_private_key(public_exponent=65537, key_size=2048) for name in "ab"}


def jwk(name: str, **more: str) -> dict[str, Any]:
    described = jwt.algorithms.RSAAlgorithm.to_jwk(KEYS[name].public_key(), as_dict=True)
    return {**described, "kid": name, **more}


def content(*keys: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(keys)}).encode()


@contextmanager
def server(body: Callable[[], bytes]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/keys"
        http.shutdown()
        thread.join()


def names(keys: JwkSet, name: str | None = None) -> list[str | None]:
    return [key.name for key in keys(name)]


def test_signing_keys_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys of mine.json"
    path.write_bytes(
        content(
            jwk("a"),
            jwk("b", alg="PS256", use="sig"),
            jwk("b", kid="encrypts", use="enc"),
            jwk("b", kid="odd", alg="HS256"),
            {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        )
    )

    async def main() -> None:
        keys = JwkSet(path.as_uri(), refresh_ms=REFRESH_MS)
        await keys.open()
        assert names(keys) == ["a", "b"]
        assert names(keys, "b") == ["b"]
        assert keys("b")[0].algorithms == ("PS256",)
        assert "RS256" in keys("a")[0].algorithms
        assert not any(name.startswith("HS") for key in keys(None) for name in key.algorithms)
        keys.close()

    asyncio.run(main())


def test_an_unknown_key_name_triggers_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jwk_set, "MISSING_KEY_MS", 0)
    body = [content(jwk("a"))]

    async def main(url: str) -> None:
        keys = JwkSet(url, refresh_ms=REFRESH_MS)
        await keys.open()
        body[0] = content(jwk("a"), jwk("b"))
        assert names(keys, "b") == [], "the fetch runs in the background"
        await until(lambda: names(keys, "b") == ["b"])
        keys.close()

    with server(lambda: body[0]) as url:
        asyncio.run(main(url))


def test_many_unknown_key_names_trigger_no_fetch() -> None:
    fetched: list[int] = []

    def body() -> bytes:
        fetched.append(1)
        return content(jwk("a"))

    async def main(url: str) -> None:
        keys = JwkSet(url, refresh_ms=REFRESH_MS)
        await keys.open()
        for number in range(100):
            keys(str(number))
        await asyncio.sleep(0)
        keys.close()

    with server(body) as url:
        asyncio.run(main(url))
    assert len(fetched) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", content(), b'{"keys": [1]}', b"x" * (1 << 21)])
def test_a_malformed_key_set_keeps_the_previous_keys(
    body: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jwk_set, "MISSING_KEY_MS", 0)
    given = [content(jwk("a"))]

    async def main(url: str) -> None:
        keys = JwkSet(url, refresh_ms=REFRESH_MS)
        await keys.open()
        given[0] = body
        keys("other")
        await until(lambda: "could not load the keys" in caplog.text)
        assert names(keys) == ["a"]
        keys.close()

    with server(lambda: given[0]) as url:
        asyncio.run(main(url))


def test_a_key_set_opens_without_keys(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        keys = JwkSet("file:///no/such/file", refresh_ms=REFRESH_MS)
        await keys.open()
        assert names(keys) == []
        keys.close()

    asyncio.run(main())
    assert "could not load the keys at file:///no/such/file" in caplog.text


@pytest.mark.parametrize("url", ["http://example.org/keys", "ftp://example.org", "keys.json"])
def test_an_insecure_key_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="use an https:// or file:// URL"):
        JwkSet(url, refresh_ms=REFRESH_MS)


def test_a_signed_token_authenticates_a_connection(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(content(jwk("a")))

    def token(key: str) -> str:
        claims = {"sub": "alice", "exp": int(time.time()) + 600, "aud": "log"}
        return jwt.encode(claims, KEYS[key], algorithm="RS256", headers={"kid": "a"})

    async def main() -> None:
        security = SecurityConfig(
            sasl_mechanisms="OAUTHBEARER",
            jwks_url=path.as_uri(),
            token_audience="log",
            failed_authentication_delay_ms=0,
        )
        config = BrokerConfig(security=security)
        listener = Listener(protocol="SASL_PLAINTEXT")
        async with (
            Broker.open("data", config=config, files=MemoryFiles()) as broker,
            SocketServer(broker, [listener]) as listening,
        ):
            (server,) = listening.servers

            async def connect(key: str) -> TcpTransport:
                client = Security(
                    protocol="SASL_PLAINTEXT", mechanism="OAUTHBEARER", token=lambda: token(key)
                )
                return await TcpTransport.connect(
                    server.host, server.port, client_id="c", timeout_ms=60_000, security=client
                )

            transport = await connect("a")
            assert transport._due_s is not None, "the session ends with its token"
            answer = await transport.call(MetadataRequest(topics=None), timeout_ms=60_000)
            assert isinstance(answer, MetadataResponse)
            await transport.close()
            with pytest.raises(AuthenticationFailed, match="invalid_token"):
                await connect("b")

    asyncio.run(main())
