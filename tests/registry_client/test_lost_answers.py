"""Requests whose answer is lost: which of them are made again by another server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from streamlog.errors import SchemaRegistryError
from streamlog.registry_client import RegistrySettings
from streamlog.registry_client.registry_admin import RegistryAdmin
from streamlog.schemas import Schema, SchemaType
from tests.registry_client.stub_registry import StubRegistry


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that takes one request and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join()


def test_a_registration_is_made_again_by_the_next_server(silent: str) -> None:
    with StubRegistry() as registry:
        admin = RegistryAdmin(RegistrySettings.of(f"{silent},{registry.url}"))
        assert admin.add("orders-value", Schema(SchemaType.AVRO, '"string"')) == 1


def test_a_deletion_is_not(silent: str) -> None:
    with StubRegistry() as registry:
        admin = RegistryAdmin(RegistrySettings.of(f"{silent},{registry.url}"))
        with pytest.raises(SchemaRegistryError, match="whether the deletion happened is not known"):
            admin.delete_subject("orders-value")
        assert not [each for each in registry.asked if each.startswith("DELETE")]


def test_a_deletion_that_was_never_sent_goes_to_the_next_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    with StubRegistry() as registry:
        admin = RegistryAdmin(RegistrySettings.of(f"{url},{registry.url}"))
        with pytest.raises(SchemaRegistryError) as caught:
            admin.delete_subject("orders-value")
        # The stub has no deletions, and has said so.
        assert caught.value.status == 501
