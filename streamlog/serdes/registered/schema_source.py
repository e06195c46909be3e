"""Schema source: the port through which serdes find schemas by id, and ids of schemas.

A worker, a history and a command put in a client of a registry; the test driver puts in
`MEMORY_REGISTRY`, which knows every schema of this process.

Rule: a serde asks only for what it has not seen; answers never change, because a registry never
gives an id to another schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import md5
from typing import Final, Protocol
from weakref import WeakSet

import msgspec

from streamlog.errors import SerdeError
from streamlog.schemas import Schema
from streamlog.serdes.registered.framing import SchemaKey


class RegisteredSchema(msgspec.Struct, frozen=True):
    """A schema with the names that a registry has given it."""

    id: int
    guid: str | None
    """32 hexadecimal digits; None if the registry gives none."""
    schema: Schema
    referenced: Mapping[str, Schema] = msgspec.field(default_factory=dict)
    """The schemas that it refers to, directly or through others, by reference name."""


class SchemaSource(Protocol):
    """Port: a registry, as serdes see it."""

    def find(self, key: SchemaKey) -> RegisteredSchema:
        """Return a schema by its id or GUID.

        Raises:
            SerdeError: the registry has no such schema, or can't be asked.
        """

    def identify(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return a schema of a subject with its id.

        Raises:
            SerdeError: the subject does not have it, or the registry can't be asked.
        """


class _Forgetting(Protocol):
    """What keeps answers of a source."""

    def forget(self) -> None:
        """Drop them."""


class MemoryRegistry:
    """A registry in memory: it knows each schema that it is asked for, and refuses none."""

    def __init__(self) -> None:
        self._by_schema: dict[Schema, RegisteredSchema] = {}
        self._by_key: dict[SchemaKey, RegisteredSchema] = {}

    def find(self, key: SchemaKey) -> RegisteredSchema:
        """Return a schema; see `SchemaSource`."""
        found = self._by_key.get(key)
        if found is None:
            raise SerdeError(f"the registry of the tests has no schema with {key}")
        return found

    def identify(self, subject: str, schema: Schema) -> RegisteredSchema:  # noqa: ARG002 - one id everywhere
        """Return the schema with its id; a new one gets the next."""
        # Ids follow the order in which a process meets its schemas: tests see 1, 2, 3.
        found = self._by_schema.get(schema)
        if found is None:
            guid = md5(repr(schema).encode(), usedforsecurity=False).hexdigest()
            found = RegisteredSchema(len(self._by_schema) + 1, guid, schema)
            self._by_schema[schema] = found
            self._by_key[SchemaKey(found.id)] = self._by_key[SchemaKey(None, guid)] = found
        return found


MEMORY_REGISTRY = MemoryRegistry()
"""The registry of tests. All apps of a process share it, so a newer version of an app reads what an
older one has written."""


NO_REGISTRY: Final = (
    "there is no schema registry: set App(schema_registry='http://HOST:8081'), or run on a log "
    "that serves one"
)


def _refuse() -> SchemaSource:
    raise SerdeError(NO_REGISTRY)


class SchemaAccess:
    """The source of one app's serdes, found when it is first needed."""

    def __init__(self, connect: Callable[[], SchemaSource] = _refuse) -> None:
        """`connect` returns the source of programs that set none with `use`."""
        self._connect = connect
        self._source: SchemaSource | None = None
        self._serdes: WeakSet[_Forgetting] = WeakSet()

    def connect_by(self, connect: Callable[[], SchemaSource]) -> None:
        """Set what returns the source when it is first needed."""
        self._connect = connect

    @property
    def source(self) -> SchemaSource:
        """The source.

        Raises:
            SerdeError: the app has no registry.
        """
        if self._source is None:
            self._source = self._connect()
        return self._source

    def attach(self, serde: _Forgetting) -> None:
        """Let a serde know when the source changes."""
        self._serdes.add(serde)

    def use(self, source: SchemaSource | None) -> None:
        """Set the source; None: the app's own, when it is needed."""
        self._source = source
        # 1. A test runs the app: id 1 is the first schema in memory. 2. The same process then runs
        # a worker, whose registry gives id 1 to another schema.
        for serde in [*self._serdes]:
            serde.forget()

    def __getstate__(self) -> object:
        """Return the source alone: other processes have no app, and no serdes of this one."""
        return self._source or self._connect()

    def __setstate__(self, state: SchemaSource) -> None:
        """Restore an access of another process."""
        self._connect, self._source, self._serdes = _refuse, state, WeakSet()
