"""TLS of the client, against real servers: whom it trusts, how it proves itself, what it says."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from streamlog.errors import ConfigError, ConnectionLost, SchemaRegistryError, SerdeError
from streamlog.registry_client import RegistryClient, RegistrySettings, SchemaBook
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.registered.framing import SchemaKey
from tests.broker.certificates import certificates
from tests.registry_client.stub_registry import StubRegistry

TEXT = Schema(SchemaType.AVRO, '"string"')


def server_context(name: str = "broker", *, asks_clients: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(getattr(certificates(), name))
    if asks_clients:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates().authority)
    return context


@pytest.fixture(scope="module")
def registry() -> Iterator[StubRegistry]:
    with StubRegistry(server_context()) as found:
        yield found


@pytest.fixture(scope="module")
def asking() -> Iterator[StubRegistry]:
    """A registry that requires a certificate of each client."""
    with StubRegistry(server_context(asks_clients=True)) as found:
        yield found


@pytest.fixture(scope="module")
def misnamed() -> Iterator[StubRegistry]:
    """A registry whose certificate, of the same authority, is that of `shop@example.org`."""
    with StubRegistry(server_context("client")) as found:
        yield found


def client_of(url: str, **files: str) -> RegistryClient:
    names = {"ca": "ssl.ca.location", "cert": "ssl.certificate.location", "key": "ssl.key.location"}
    names["password"] = "ssl.key.password"
    given = {names[name]: path for name, path in files.items()}
    # Patience shows that a refused certificate is no reason to wait: the test would time out.
    settings = RegistrySettings.of({"schema.registry.url": url, **given})
    return RegistryClient(settings, patience_ms=3_600_000)


def test_an_authority_of_ones_own_is_trusted(registry: StubRegistry) -> None:
    assert client_of(registry.url, ca=certificates().authority).register("a", TEXT) == 1


def test_a_server_of_another_authority_is_refused_at_once(registry: StubRegistry) -> None:
    asked = registry.asked.total()
    client = client_of(registry.url, ca=certificates().stranger_authority)
    with pytest.raises(SchemaRegistryError) as caught:
        client.register("a", TEXT)
    assert str(caught.value) == (
        f"the certificate of the schema registry at {registry.url} is not trusted: unable to get "
        "local issuer certificate; ssl.ca.location names the file of trusted authorities"
    )
    assert registry.asked.total() == asked


def test_a_server_with_the_name_of_another_is_refused(misnamed: StubRegistry) -> None:
    with pytest.raises(SchemaRegistryError, match=r"is not trusted: IP address mismatch"):
        client_of(misnamed.url, ca=certificates().authority).register("a", TEXT)


def test_the_next_server_may_be_trusted(misnamed: StubRegistry, registry: StubRegistry) -> None:
    client = client_of(f"{misnamed.url},{registry.url}", ca=certificates().authority)
    assert client.register("a", TEXT) == 1


def test_a_distrusted_server_beside_one_that_is_down_is_waited_for(misnamed: StubRegistry) -> None:
    with StubRegistry() as gone:
        down = gone.url
    settings = {"schema.registry.url": f"{misnamed.url},{down}", "ssl.ca.location": ca()}
    with pytest.raises(ConnectionLost, match=r"does not answer: the cert.*; http:.* refused"):
        RegistryClient(RegistrySettings.of(settings)).register("a", TEXT)


def ca() -> str:
    return certificates().authority


def test_a_client_shows_its_certificate(asking: StubRegistry) -> None:
    client = client_of(asking.url, ca=ca(), cert=certificates().client)
    assert client.register("a", TEXT) == 1


def test_the_key_may_be_encrypted_and_apart(asking: StubRegistry, tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(Path(certificates().client).read_bytes(), None)
    encrypted = tmp_path / "key.pem"
    encrypted.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"wonderland"),
        )
    )
    files = {"ca": ca(), "cert": certificates().client, "key": str(encrypted)}
    assert client_of(asking.url, **files, password="wonderland").register("a", TEXT) == 1
    with pytest.raises(ConfigError, match=r"ssl\.certificate\.location=.* its key in it or in"):
        client_of(asking.url, **files, password="wrong")


@pytest.mark.parametrize("name", ["", "stranger"])
def test_a_client_that_the_server_refuses_learns_what_to_set(
    asking: StubRegistry, name: str
) -> None:
    cert = {"cert": getattr(certificates(), name)} if name else {}
    with pytest.raises(SchemaRegistryError, match=r"requires a client certificate, set ssl\.cert"):
        client_of(asking.url, ca=ca(), **cert).register("a", TEXT)


def test_a_server_without_tls_is_named_as_such() -> None:
    with StubRegistry() as plain:
        url = plain.url.replace("http://", "https://")
        with pytest.raises(SchemaRegistryError, match="if it serves no TLS, write http://"):
            client_of(url).register("a", TEXT)


@pytest.mark.parametrize("name", ["ca", "cert"])
def test_an_unusable_file_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"ssl\.{name}\w*\.location=/no/such/file"):
        client_of("https://127.0.0.1", **{name: "/no/such/file"})


def test_records_do_not_wait_for_a_registry_that_is_not_trusted(registry: StubRegistry) -> None:
    settings = {"schema.registry.url": registry.url, "ssl.ca.location": other_ca()}
    book = SchemaBook(RegistrySettings.of(settings))
    try:
        with pytest.raises(SerdeError, match=r"its schema \(id 1\) is unknown: the certificate of"):
            book.find(SchemaKey(1))
    finally:
        book.close()


def other_ca() -> str:
    return certificates().stranger_authority


def test_the_password_of_a_key_is_not_shown() -> None:
    given = {"schema.registry.url": "https://a", "ssl.key.password": "wonderland"}
    assert "wonderland" not in repr(RegistrySettings.of(given))
