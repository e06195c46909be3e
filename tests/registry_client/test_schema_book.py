"""The book of schemas: few requests, and what is known works without a registry."""

from __future__ import annotations

import pickle
import threading
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from streamlog.errors import ConfigError, ConnectionLost, SchemaRegistryError, SerdeError
from streamlog.registry_client import RegistryClient, RegistrySettings, SchemaBook
from streamlog.schemas import Schema, SchemaReference, SchemaType
from streamlog.serdes.registered.framing import SchemaKey
from tests.registry_client.stub_registry import StubRegistry

TEXT = Schema(SchemaType.AVRO, '"string"')
NUMBER = Schema(SchemaType.AVRO, '"long"')


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as found:
        yield found


@pytest.fixture
def book(registry: StubRegistry) -> Iterator[SchemaBook]:
    found = SchemaBook(RegistrySettings.of(registry.url), wait_ms=100)
    yield found
    found.close()


def test_a_schema_is_asked_for_once_however_many_ask(
    registry: StubRegistry, book: SchemaBook
) -> None:
    key = SchemaKey(book.client.register("a", TEXT))
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(book.find, [key] * 40)]
    assert {each.schema for each in found} == {TEXT}
    assert registry.asked["GET /schemas/ids/1"] == 1


def test_a_schema_is_found_by_its_guid(registry: StubRegistry, book: SchemaBook) -> None:
    book.client.register("a", TEXT)
    guid = book.client.lookup("a", TEXT).guid
    assert book.find(SchemaKey(None, guid)).schema == TEXT


def test_known_schemas_work_while_the_registry_is_down(
    registry: StubRegistry, book: SchemaBook
) -> None:
    known, other = book.client.register("a", TEXT), book.client.register("b", NUMBER)
    book.find(SchemaKey(known))
    registry.is_down = True
    assert book.find(SchemaKey(known)).schema == TEXT
    with pytest.raises(SerdeError, match=r"its schema \(id 2\) is unknown: .* status 503 not now"):
        book.find(SchemaKey(other))


def test_a_schema_that_failed_is_not_asked_for_at_once(
    registry: StubRegistry, book: SchemaBook
) -> None:
    registry.is_down = True
    for _ in range(3):
        with pytest.raises(SerdeError):
            book.find(SchemaKey(7))
    asked = registry.asked["GET /schemas/ids/7"]
    assert asked <= 3
    assert book.requests == asked


def test_without_leave_to_block_find_only_says_what_it_waits_for(registry: StubRegistry) -> None:
    registry.is_down = True
    book = SchemaBook(RegistrySettings.of(registry.url), may_block=False, wait_ms=60_000)
    try:
        with pytest.raises(SerdeError, match=r"its schema \(id 7\) is unknown"):
            book.find(SchemaKey(7))
        assert not book.is_settled(SchemaKey(7))
        assert "the schema with id 7, for 0 of at most 60 s" in book.waiting()[0]
        with pytest.raises(SerdeError, match="its schema is not registered under 'a'"):
            book.identify("a", TEXT)
    finally:
        book.close()


def test_the_subject_of_the_app_counts_where_the_topic_has_none(registry: StubRegistry) -> None:
    book = SchemaBook(RegistrySettings.of(registry.url), app_id="shop")
    try:
        with pytest.raises(SerdeError, match=r"'sales-value': a worker registers it"):
            book.identify("sales-value", TEXT)
        own = book.client.register("shop-sales-value", TEXT)
        assert book.identify("sales-value", TEXT).id == own
        # Once the topic's writers have registered theirs, that one comes first.
        theirs = book.client.register("rents-value", NUMBER)
        book.client.register("shop-rents-value", NUMBER)
        assert book.identify("rents-value", NUMBER).id == theirs
    finally:
        book.close()


def test_a_waiting_schema_is_found_when_the_registry_comes_back(registry: StubRegistry) -> None:
    registry.is_down = True
    book = SchemaBook(RegistrySettings.of(registry.url), wait_ms=60_000)
    try:
        waiting = threading.Thread(target=lambda: found.append(book.find(SchemaKey(1)).schema))
        found: list[Schema] = []
        waiting.start()
        while not registry.asked:
            threading.Event().wait(0.001)
        registry.register("a", {"schema": TEXT.text})
        registry.is_down = False
        waiting.join(60)
        assert found == [TEXT]
    finally:
        book.close()


def test_the_next_server_answers_for_one_that_is_gone(registry: StubRegistry) -> None:
    with StubRegistry() as gone:
        url = gone.url
    client = RegistryClient(RegistrySettings.of(f"{url},{registry.url}"))
    assert client.register("a", TEXT) == 1


def test_an_error_names_each_server_without_a_password() -> None:
    with StubRegistry() as gone:
        url = gone.url
    client = RegistryClient(RegistrySettings.of(url.replace("://", "://me:secret@")))
    with pytest.raises(ConnectionLost, match=rf"does not answer: {url}") as caught:
        client.register("a", TEXT)
    assert "secret" not in str(caught.value)


def test_requests_authenticate(registry: StubRegistry) -> None:
    registry.auth = f"Basic {b64encode(b'me:pass').decode()}"
    client = RegistryClient(
        RegistrySettings.of(
            {"schema.registry.url": registry.url, "basic.auth.user.info": "me:pass"}
        )
    )
    assert client.register("a", TEXT) == 1
    with pytest.raises(SchemaRegistryError, match="Unauthorized") as caught:
        RegistryClient(RegistrySettings.of(registry.url)).register("a", TEXT)
    assert caught.value.status == 401


def test_references_come_each_after_those_that_it_needs(registry: StubRegistry) -> None:
    client = RegistryClient(RegistrySettings.of(registry.url))
    inner = Schema(SchemaType.AVRO, '{"type":"fixed","name":"I","size":2}')
    middle = Schema(
        SchemaType.AVRO,
        '{"type":"record","name":"M","fields":[{"name":"i","type":"I"}]}',
        (SchemaReference("I", "inner", 1),),
    )
    outer = Schema(
        SchemaType.AVRO,
        '{"type":"record","name":"O","fields":[{"name":"m","type":"M"},{"name":"i","type":"I"}]}',
        (SchemaReference("M", "middle", 1), SchemaReference("I", "inner", 1)),
    )
    client.register("inner", inner)
    client.register("middle", middle)
    found = client.find(SchemaKey(client.register("outer", outer)))
    assert [*found.referenced] == ["I", "M"]


def test_a_book_takes_what_it_knows_to_another_process(
    registry: StubRegistry, book: SchemaBook
) -> None:
    key = SchemaKey(book.client.register("a", TEXT))
    book.find(key)
    data = pickle.dumps(book)
    registry.is_down = True
    assert pickle.loads(data).find(key).schema == TEXT  # noqa: S301 - its own bytes


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("localhost:8081", "malformed"),
        ("", "schema.registry.url is missing"),
        ({"schema.registry.url": "http://a", "basic.auth": "x"}, "no setting 'basic.auth'"),
    ],
)
def test_settings_are_checked(given: str | dict[str, str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        RegistrySettings.of(given)
