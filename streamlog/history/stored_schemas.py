"""Stored schemas: the schemas of a log's own registry, read from its topic `_schemas`.

A history of an embedded log may run while no process serves the log's registry. What it would
answer stands in the topic, which is replayed here as a broker replays it.

Rule: nothing is registered. A history writes with the ids that the app's workers have been given;
rows of a type that no worker has registered are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from streamlog.errors import InvalidSchema, SerdeError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.log_record import LogRecord
from streamlog.registry.registry_state import RegistryState
from streamlog.registry.subject_names import DEFAULT_CONTEXT
from streamlog.schemas import Schema, parse_schema
from streamlog.serdes.registered import RegisteredSchema, SchemaKey

SCHEMAS_TOPIC: Final = "_schemas"


class StoredSchemas:
    """The source of an app's serdes (`SchemaSource`) out of the records of a registry."""

    def __init__(self, records: Iterable[LogRecord], app_id: str) -> None:
        """Replay the records.

        Args:
            records: the records of `_schemas`, in their order.
            app_id: the app, which has subjects of its own for topics that it only reads.
        """
        self._state = RegistryState()
        self._app_id = app_id
        for record in records:
            self._state.apply(record.key, record.value)

    def find(self, key: SchemaKey) -> RegisteredSchema:
        """Return a schema; see `SchemaSource`."""
        context = self._state.context(DEFAULT_CONTEXT)
        number = key.id
        if key.guid is not None:
            # The state has guids as the REST API writes them, with dashes.
            guids = {each.guid.replace("-", ""): at for at, each in context.contents.items()}
            number = guids.get(key.guid)
        content = None if number is None else context.contents.get(number)
        if number is None or content is None:
            raise SerdeError(f"its schema ({key}) is not in {SCHEMAS_TOPIC} of this log")
        return self._registered(number, content.schema, content.guid)

    def identify(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return a schema of a subject with its id; see `SchemaSource`."""
        # As a worker: a topic that the app only reads has a subject of the app's own.
        for name in (subject, f"{self._app_id}-{subject}"):
            for version in reversed(self._state.versions(name)):
                if self._is_equal(version.content.schema, schema):
                    return self._registered(
                        version.id, version.content.schema, version.content.guid
                    )
        raise SerdeError(
            f"its schema is not registered under {subject!r}: a worker registers it when it starts"
        )

    def _registered(self, number: int, schema: Schema, guid: str) -> RegisteredSchema:
        return RegisteredSchema(number, guid.replace("-", ""), schema, self._referenced(schema))

    def _referenced(self, schema: Schema) -> Mapping[str, Schema]:
        found: dict[str, Schema] = {}
        for reference in schema.references:
            version = self._state.version(reference.subject, reference.version, deleted=True)
            if version is not None and reference.name not in found:
                # What it refers to comes first.
                found |= self._referenced(version.content.schema)
                found[reference.name] = version.content.schema
        return found

    def _is_equal(self, stored: Schema, schema: Schema) -> bool:
        """Return whether a registry would give both the same id."""
        if stored == schema:
            return True
        if stored.type is not schema.type:
            return False
        try:
            texts = {
                parse_schema(each, self._referenced(each), is_new=False).canonical
                for each in (stored, schema)
            }
        except InvalidSchema:
            return False
        return len(texts) == 1


async def read_stored_schemas(log: Log, app_id: str) -> StoredSchemas:
    """Return the schemas of the registry that a log has served."""
    names = {each.name for each in await log.admin().list_topics(internal=True)}
    records: Iterable[LogRecord] = ()
    if SCHEMAS_TOPIC in names:
        records = await log.read_range(TopicPartition(SCHEMAS_TOPIC, 0))
    return StoredSchemas(records, app_id)
