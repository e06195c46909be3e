"""REST API: the requests of Confluent's registry that serdes and workers send.

Rule: answers are checked where they arrive: a registry is another program, and may be another
product.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Final

import msgspec

from streamlog.clock import Clock
from streamlog.errors import SchemaRegistryError
from streamlog.registry_client.registry_settings import RegistrySettings
from streamlog.registry_client.rest_connection import RestConnection
from streamlog.schemas import CompatibilityLevel, Schema, SchemaReference, SchemaType
from streamlog.serdes.erased_types import JsonValue
from streamlog.serdes.registered.framing import SchemaKey
from streamlog.serdes.registered.schema_source import RegisteredSchema

REFERENCES_MAX: Final = 1_000
NOT_FOUND: Final = 404
CONFLICT: Final = 409


class RegisteredVersion(msgspec.Struct, frozen=True):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    guid: str | None
    schema: Schema


class RegistryClient:
    """The requests of one registry; each blocks, and raises what `RestConnection.request` does."""

    def __init__(
        self, settings: RegistrySettings, *, clock: Clock | None = None, patience_ms: int = 0
    ) -> None:
        """`patience_ms`: how long each request is tried again while no server answers."""
        self.settings = settings
        self._connection = RestConnection(settings, clock)
        self._patience_ms = patience_ms

    def find(self, key: SchemaKey) -> RegisteredSchema:
        """Return a schema by its id or GUID, with all that it refers to.

        Raises:
            SchemaRegistryError: the registry has no such schema; its status is 404.
        """
        path = ("schemas", "guids", _dashed(key.guid)) if key.guid else ("schemas", "ids", key.id)
        answer = self._get(*path)
        schema = schema_of(answer)
        found = key.id if key.id is not None else answer.get("id", 0)
        guid = key.guid or _plain_guid(answer)
        return RegisteredSchema(found, guid, schema, self.referenced(schema))

    def lookup(self, subject: str, schema: Schema, *, normalize: bool = False) -> RegisteredVersion:
        """Return the version of a subject that has a schema.

        Raises:
            SchemaRegistryError: it has none; the status is 404.
        """
        answer = self._send("POST", "subjects", subject, body=body_of(schema), normalize=normalize)
        return version_of(subject, answer, schema)

    def register(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """Register a schema; returns its id, which is that of the version if it has one already.

        Raises:
            SchemaRegistryError: the schema is invalid (42201), or incompatible with earlier
                versions (409).
        """
        path = ("subjects", subject, "versions")
        answer = self._send("POST", *path, body=body_of(schema), normalize=normalize)
        return whole_number(answer, "id")

    def latest(self, subject: str) -> RegisteredVersion | None:
        """Return the latest version of a subject; None if it has none."""
        try:
            answer = self._get("subjects", subject, "versions", "latest")
        except SchemaRegistryError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return version_of(subject, answer, schema_of(answer))

    def versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, oldest first; none if there is no such subject."""
        try:
            answer = self._get("subjects", subject, "versions")
        except SchemaRegistryError as error:
            if error.status == NOT_FOUND:
                return []
            raise
        return [each for each in answer if isinstance(each, int)]

    def version(self, subject: str, version: int) -> RegisteredVersion:
        """Return a version of a subject."""
        answer = self._get("subjects", subject, "versions", version)
        return version_of(subject, answer, schema_of(answer))

    def level(self, subject: str) -> CompatibilityLevel:
        """Return the compatibility level that holds for a subject."""
        # Without `defaultToGlobal`, a subject that has no level of its own would be an error.
        answer = self._send("GET", "config", subject, defaultToGlobal=True)
        return CompatibilityLevel(answer.get("compatibilityLevel", "BACKWARD"))

    def incompatibilities(self, subject: str, schema: Schema) -> list[str]:
        """Return why the registry would refuse a schema; none if it would not."""
        path = ("compatibility", "subjects", subject, "versions")
        answer = self._send("POST", *path, body=body_of(schema), verbose=True)
        messages = [str(each) for each in answer.get("messages", ())]
        if answer.get("is_compatible", True):
            return []
        return messages or ["the registry gives no reason"]

    def referenced(self, schema: Schema) -> Mapping[str, Schema]:
        """Return the schemas that a schema refers to, each after those that it refers to.

        Raises:
            SchemaRegistryError: one is missing, or there are too many.
        """
        # Depth first, by hand: a chain of references may be as long as their number.
        # 1. O refers to M and I, and M to I. 2. M is asked for, and waits for its own references.
        # 3. I is asked for and noted, then M. 4. I comes up again for O, and is known.
        found: dict[str, Schema] = {}
        pending = [(each, False) for each in reversed(schema.references)]
        seen: dict[str, Schema] = {}
        while pending:
            reference, is_ready = pending.pop()
            if is_ready:
                found[reference.name] = seen[reference.name]
                continue
            if reference.name in seen:
                continue
            if len(seen) >= REFERENCES_MAX:
                raise SchemaRegistryError(f"the schema has more than {REFERENCES_MAX} references")
            inner = self.version(reference.subject, reference.version).schema
            seen[reference.name] = inner
            # It comes back, to be noted, when everything that it refers to has been.
            pending.append((reference, True))
            pending += [(each, False) for each in reversed(inner.references)]
        return found

    def close(self) -> None:
        """End the pauses of requests in other threads."""
        self._connection.close()

    def _get(self, *path: str | int | None) -> JsonValue:
        return self._send("GET", *path)

    def _send(
        self, method: str, *path: str | int | None, body: object = None, **flags: bool
    ) -> JsonValue:
        return self._connection.request(
            method,
            tuple(part for part in path if part is not None),
            query={name: "true" for name, is_on in flags.items() if is_on} or None,
            body=body,
            patience_ms=self._patience_ms,
        )


def body_of(schema: Schema) -> dict[str, object]:
    """Return a schema as the body of a request."""
    body: dict[str, object] = {"schema": schema.text}
    # Registries before schema types know Avro alone, without a name.
    if schema.type is not SchemaType.AVRO:
        body["schemaType"] = str(schema.type)
    if schema.references:
        body["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version}
            for each in schema.references
        ]
    return body


def schema_of(answer: JsonValue) -> Schema:
    """Return the schema in an answer.

    Raises:
        SchemaRegistryError: there is none.
    """
    try:
        references = tuple(
            SchemaReference(each["name"], each["subject"], each["version"])
            for each in answer.get("references") or ()
        )
        return Schema(SchemaType(answer.get("schemaType") or "AVRO"), answer["schema"], references)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SchemaRegistryError(f"the answer has no schema: {error}") from error


def version_of(subject: str, answer: JsonValue, schema: Schema) -> RegisteredVersion:
    """Return the version of a subject in an answer, with its schema.

    Raises:
        SchemaRegistryError: the answer has no version or id.
    """
    return RegisteredVersion(
        subject,
        whole_number(answer, "version"),
        whole_number(answer, "id"),
        _plain_guid(answer),
        schema,
    )


def whole_number(answer: JsonValue, name: str) -> int:
    """Return a whole number in an answer.

    Raises:
        SchemaRegistryError: there is none of this name.
    """
    found = answer.get(name) if isinstance(answer, dict) else None
    if not isinstance(found, int):
        raise SchemaRegistryError(f"the answer has no {name}: {str(answer)[:60]}")
    return found


def _plain_guid(answer: JsonValue) -> str | None:
    found = answer.get("guid")
    return found.replace("-", "") if isinstance(found, str) else None


def _dashed(guid: str) -> str:
    """Return a GUID as the REST API writes it."""
    cuts = (0, 8, 12, 16, 20, 32)
    return "-".join(guid[low:high] for low, high in pairwise(cuts))
