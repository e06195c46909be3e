"""How long schemas are waited for, by a clock that the tests move."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from streamlog.clock import ManualClock
from streamlog.errors import SerdeError
from streamlog.registry_client import RegistrySettings, SchemaBook, schema_book
from streamlog.schemas import Schema, SchemaType
from streamlog.serdes.registered.framing import SchemaKey
from tests.registry_client.stub_registry import StubRegistry

KEY = SchemaKey(1)
PATH = "GET /schemas/ids/1"
TEXT = Schema(SchemaType.AVRO, '"string"')


@pytest.fixture
def registry() -> Iterator[StubRegistry]:
    with StubRegistry() as found:
        yield found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def book(
    registry: StubRegistry, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SchemaBook]:
    """The book of a worker, with its usual limits and hardly any pauses."""
    monkeypatch.setattr(schema_book, "PAUSE_MS", 1)
    monkeypatch.setattr(schema_book, "PAUSE_MAX_MS", 1)
    found = SchemaBook(RegistrySettings.of(registry.url), clock=clock, may_block=False)
    yield found
    found.close()


def until_asked_twice(registry: StubRegistry) -> None:
    """Wait until a request that began after this call was answered."""
    # The answer to the first one may have been under way before the clock moved.
    wanted = registry.asked[PATH] + 2
    while registry.asked[PATH] < wanted:
        threading.Event().wait(0.001)


def until_settled(book: SchemaBook) -> None:
    while not book.is_settled(KEY):
        threading.Event().wait(0.001)


def test_records_wait_60_s_while_no_registry_answers(
    registry: StubRegistry, book: SchemaBook, clock: ManualClock
) -> None:
    registry.is_down = True
    book.request([KEY])
    until_asked_twice(registry)
    clock.advance(59_999)
    until_asked_twice(registry)
    assert not book.is_settled(KEY)
    assert "for 59 of at most 60 s: the schema registry does not answer" in book.waiting()[0]
    clock.advance(1)
    until_settled(book)
    assert book.waiting() == []
    with pytest.raises(SerdeError, match=r"\(id 1\) is unknown: the schema registry does not ans"):
        book.find(KEY)


def test_a_registry_that_is_back_in_the_last_moment_answers(
    registry: StubRegistry, book: SchemaBook, clock: ManualClock
) -> None:
    registry.is_down = True
    book.request([KEY])
    clock.advance(59_999)
    until_asked_twice(registry)
    registry.register("a", {"schema": TEXT.text})
    registry.is_down = False
    until_settled(book)
    assert book.find(KEY).schema == TEXT


def test_a_schema_that_no_registry_has_is_waited_for_2_s(
    registry: StubRegistry, book: SchemaBook, clock: ManualClock
) -> None:
    book.request([KEY])
    clock.advance(1_999)
    until_asked_twice(registry)
    assert not book.is_settled(KEY)
    clock.advance(1)
    until_settled(book)
    with pytest.raises(SerdeError, match="Schema not found"):
        book.find(KEY)


def test_a_refusal_of_the_client_is_not_waited_for(
    registry: StubRegistry, book: SchemaBook
) -> None:
    registry.auth = "Basic of someone else"
    book.request([KEY])
    until_settled(book)
    with pytest.raises(SerdeError, match="Unauthorized"):
        book.find(KEY)


def test_a_schema_that_was_not_found_is_asked_for_again_after_30_s(
    registry: StubRegistry, book: SchemaBook, clock: ManualClock
) -> None:
    registry.is_down = True
    book.request([KEY])
    clock.advance(60_000)
    until_settled(book)
    asked = registry.asked[PATH]
    clock.advance(29_999)
    book.request([KEY])
    assert book.is_settled(KEY)
    assert registry.asked[PATH] == asked
    registry.register("a", {"schema": TEXT.text})
    registry.is_down = False
    clock.advance(1)
    book.request([KEY])
    until_settled(book)
    assert book.find(KEY).schema == TEXT
