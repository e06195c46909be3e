"""SchemaDesk: what the console asks a schema registry: for pages, and to read records.

The client of a registry blocks, so its requests run in threads of the desk. Rules of the module: a
page waits `PATIENCE_S` at most, because records are shown with or without their schemas; a schema
that was not found is not asked for again within `AGAIN_MS`.
"""

from __future__ import annotations

import asyncio
import difflib
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeVar

from streamlog.clock import Clock
from streamlog.console.pages.schema_pages import (
    Checked,
    SchemaChanges,
    SchemaLook,
    SubjectLook,
    SubjectRow,
)
from streamlog.console.shown_records import Decode, schema_id_of
from streamlog.errors import (
    ConnectionLost,
    SchemaRegistryError,
    SerdeError,
    StreamlogError,
)
from streamlog.record import TopicPartition
from streamlog.records.log_record import LogRecord
from streamlog.registry_client import RegistrySettings
from streamlog.registry_client.registry_admin import RegistryAdmin
from streamlog.schemas import Schema, SchemaType, parse_schema
from streamlog.schemas.changes import describe_changes
from streamlog.serdes.registered.framing import ID_BYTES, SchemaKey
from streamlog.serdes.registered.written_values import Read, json_reader

T = TypeVar("T")
PATIENCE_S: Final = 3.0
THREADS: Final = 2
"""Requests at a time."""
ASKED_MAX: Final = 50
"""Unknown schemas that one page asks for."""
KNOWN_MAX: Final = 1_000
AGAIN_MS: Final = 30_000
LINES_MAX: Final = 2_000
"""Lines of a schema that are compared: the time grows with their square."""
NO_CONFIG: Final = 40408
"""The registry's code for a subject without settings of its own."""


class SchemaDesk:
    """Asks one registry."""

    def __init__(self, settings: Callable[[], RegistrySettings | None], clock: Clock) -> None:
        """`settings` returns where the registry is at present; None: there is none."""
        self._settings, self._clock = settings, clock
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="streamlog-console-schemas")
        self._known: OrderedDict[int, Read] = OrderedDict()
        self._failed: OrderedDict[int, int] = OrderedDict()
        """Id to when it is asked for again."""

    def close(self) -> None:
        """End the threads once their requests are answered."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # ---- records ----

    async def decoder_of(self, records: Mapping[TopicPartition, Iterable[LogRecord]]) -> Decode:
        """Return what reads these records; their schemas are asked for before."""
        await self._learn(
            {
                found
                for part in records.values()
                for each in part
                for data in (each.key, each.value)
                if data is not None and (found := schema_id_of(data)) is not None
            }
        )
        return self.decode

    def decode(self, data: bytes) -> bytes | None:
        """Return what is framed as JSON; None if its schema is not known, or does not fit."""
        id_ = schema_id_of(data)
        read = None if id_ is None else self._known.get(id_)
        if read is None:
            return None
        try:
            return read(data, ID_BYTES)
        except SerdeError:
            return None  # Shown as bytes, as what looks framed by chance.

    async def _learn(self, ids: set[int]) -> None:
        now_ms = self._clock.now_ms()
        wanted = [
            each
            for each in sorted(ids)
            if each not in self._known and self._failed.get(each, 0) <= now_ms
        ]
        if not wanted or self._settings() is None:
            return
        try:
            async with asyncio.timeout(PATIENCE_S):
                for each in wanted[:ASKED_MAX]:
                    await self._learn_one(each)
        except (TimeoutError, ConnectionLost):
            # The registry is down: this page and the next ones do without it for a while.
            for each in wanted:
                self._fail(each)

    async def _learn_one(self, id_: int) -> None:
        try:
            self._known[id_] = await self._ask(
                lambda admin: json_reader(admin.find(SchemaKey(id_)))
            )
        except ConnectionLost:
            raise
        # Not found, or an extra is not installed: the record is shown as bytes.
        except StreamlogError:
            self._fail(id_)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def _fail(self, id_: int) -> None:
        self._failed[id_] = self._clock.now_ms() + AGAIN_MS
        # Bytes that only look framed have any id.
        while len(self._failed) > KNOWN_MAX:
            self._failed.popitem(last=False)

    # ---- pages ----

    @property
    def is_there(self) -> bool:
        """Whether a registry is known."""
        return self._settings() is not None

    async def subjects(self) -> list[SubjectRow]:
        """Return the subjects, each with its latest version.

        Raises:
            StreamlogError: the registry refused, or does not answer.
        """
        found = await self._ask(lambda admin: admin.latest_versions())
        rows = [SubjectRow(each.subject, each.schema.type, each.version, each.id) for each in found]
        return sorted(rows, key=lambda each: each.name)

    async def subject(self, name: str, version: int | None, against: int | None) -> SubjectLook:
        """Return a version of a subject, compared with another one.

        Args:
            name: the subject.
            version: the version; None: the latest.
            against: the other version; None: the one before.

        Raises:
            SchemaRegistryError: there is no such subject or version.
        """
        return await self._ask(partial(_subject, name=name, version=version, against=against))

    async def schema(self, id_: int) -> SchemaLook:
        """Return a schema by its id."""
        found = await self._ask(lambda admin: admin.schema_by_id(id_))
        return _look(found, id_)

    async def check(self, name: str, kind: str, text: str) -> Checked:
        """Ask whether a schema may be the next version of a subject."""
        schema = Schema(SchemaType(kind), text)
        found = await self._ask(lambda admin: admin.compare(name, schema))
        return Checked(found.is_compatible, found.messages)

    async def _ask(self, question: Callable[[RegistryAdmin], T]) -> T:
        settings = self._settings()
        if settings is None:
            raise ConnectionLost("there is no schema registry")
        # A client is made for each: it holds no connection, and the address may change.
        asked = partial(question, RegistryAdmin(settings, clock=self._clock))
        async with asyncio.timeout(2 * PATIENCE_S):
            return await asyncio.get_running_loop().run_in_executor(self._threads, asked)


def _subject(
    admin: RegistryAdmin, name: str, version: int | None, against: int | None
) -> SubjectLook:
    # Three to five short requests, one after another, in one thread of the desk.
    versions = admin.versions_of(name)
    chosen = versions[-1] if version is None else version
    earlier = [each for each in versions if each < chosen]
    other = against if against is not None else earlier[-1] if earlier else None
    found = admin.registered(name, chosen)
    before = None if other is None else admin.registered(name, other)
    level, is_own = _level(admin, name)
    changes = SchemaChanges()
    if before is not None:
        changes = compared(
            (before.schema, admin.referenced(before.schema)),
            (found.schema, admin.referenced(found.schema)),
        )
    return SubjectLook(
        name=name,
        versions=tuple(versions),
        version=chosen,
        against=other,
        level=level,
        is_own_level=is_own,
        schema=_look(found.schema, found.id),
        changes=changes,
    )


def _level(admin: RegistryAdmin, name: str) -> tuple[str, bool]:
    try:
        return str(admin.config(name).get("compatibilityLevel", "")), True
    except SchemaRegistryError as error:
        if error.error_code != NO_CONFIG:
            raise
    return str(admin.config().get("compatibilityLevel", "")), False


def _look(schema: Schema, id_: int) -> SchemaLook:
    references = tuple((each.name, each.subject, each.version) for each in schema.references)
    return SchemaLook(id_, schema.type, laid_out(schema.type, schema.text), references)


def compared(
    before: tuple[Schema, Mapping[str, Schema]], after: tuple[Schema, Mapping[str, Schema]]
) -> SchemaChanges:
    """Return what has changed between two schemas, each with those that it refers to."""
    try:
        old, new = (parse_schema(each, used, is_new=False) for each, used in (before, after))
        sentences = tuple(describe_changes(old, new))
    # One that this release can't read is still shown as text.
    except StreamlogError:
        sentences = ()
    was, is_ = (
        laid_out(each.type, each.text).splitlines()[:LINES_MAX] for each, _ in (before, after)
    )
    # The first two lines name files.
    return SchemaChanges(sentences, tuple([*difflib.unified_diff(was, is_, lineterm="")][2:]))


def laid_out(kind: SchemaType, text: str) -> str:
    """Return a schema with a line for each member, if it is JSON."""
    if kind is SchemaType.PROTOBUF:
        return text
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
