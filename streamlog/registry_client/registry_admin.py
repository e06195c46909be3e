"""Registry admin: the requests of Confluent's registry that operators send.

Rule: one method is one request. Not done here: the requests of serdes and workers (`rest_api`).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from streamlog.errors import SchemaRegistryError
from streamlog.registry_client.rest_api import (
    RegisteredVersion,
    RegistryClient,
    body_of,
    schema_of,
    version_of,
    whole_number,
)
from streamlog.schemas import CompatibilityLevel, Schema
from streamlog.serdes.erased_types import JsonValue

LATEST: Final = "latest"
GLOBAL: Final = None
"""Stands for all subjects that have no setting of their own."""


class RegistryMode(StrEnum):
    """Which requests change a subject."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    IMPORT = "IMPORT"
    """Schemas are registered with the ids and versions that they have elsewhere."""


class CompatibilityAnswer(msgspec.Struct, frozen=True):
    """Whether a registry would accept a schema."""

    is_compatible: bool
    messages: tuple[str, ...]
    """Why not."""


class RegistryAdmin(RegistryClient):
    """The requests of an operator; each blocks, and raises what `RestConnection.request` does."""

    def subjects(self, *, prefix: str = "", deleted: bool = False) -> list[str]:
        """Return the names of subjects.

        Args:
            prefix: the beginning of their names.
            deleted: whether subjects count that are deleted, but not permanently.
        """
        answer = self._ask("GET", "subjects", subjectPrefix=prefix or None, deleted=deleted)
        return [str(each) for each in answer]

    def latest_versions(
        self, *, prefix: str = "", deleted: bool = False
    ) -> list[RegisteredVersion]:
        """Return the latest version of each subject, in one request; see `subjects`."""
        answer = self._ask(
            "GET", "schemas", latestOnly=True, subjectPrefix=prefix or None, deleted=deleted
        )
        return [version_of(str(each["subject"]), each, schema_of(each)) for each in answer]

    def versions_of(self, subject: str, *, deleted: bool = False) -> list[int]:
        """Return the versions of a subject, the oldest first.

        Raises:
            SchemaRegistryError: there is no such subject (40401).
        """
        return [*self._ask("GET", "subjects", subject, "versions", deleted=deleted)]

    def registered(
        self, subject: str, version: int | str = LATEST, *, deleted: bool = False
    ) -> RegisteredVersion:
        """Return a version of a subject, by number or the latest.

        Raises:
            SchemaRegistryError: there is no such subject (40401) or version (40402).
        """
        answer = self._ask("GET", "subjects", subject, "versions", version, deleted=deleted)
        return version_of(subject, answer, schema_of(answer))

    def schema_by_id(self, id_: int) -> Schema:
        """Return a schema by its id.

        Raises:
            SchemaRegistryError: there is no such schema (40403).
        """
        return schema_of(self._ask("GET", "schemas", "ids", id_))

    def add(self, subject: str, schema: Schema, *, normalize: bool = False) -> int:
        """Register a schema; returns its id, which is that of an equal schema if there is one.

        Raises:
            SchemaRegistryError: it is invalid (42201), or incompatible with earlier ones (409).
        """
        path = ("subjects", subject, "versions")
        answer = self._ask("POST", *path, body=body_of(schema), normalize=normalize)
        return whole_number(answer, "id")

    def compare(
        self, subject: str, schema: Schema, version: int | str | None = None
    ) -> CompatibilityAnswer:
        """Ask whether a schema may follow the versions of a subject.

        Args:
            subject: the subject.
            schema: the schema.
            version: compares with this version alone; None follows the subject's level.

        Raises:
            SchemaRegistryError: the schema is invalid (42201), or there is no such version (40402).
        """
        path: tuple[str | int, ...] = ("compatibility", "subjects", subject, "versions")
        path += () if version is None else (version,)
        answer = self._ask("POST", *path, body=body_of(schema), verbose=True)
        messages = tuple(str(each) for each in answer.get("messages") or ())
        return CompatibilityAnswer(bool(answer.get("is_compatible")), messages)

    def delete_version(self, subject: str, version: int | str, *, permanent: bool = False) -> int:
        """Delete a version of a subject; returns its number.

        Args:
            subject: the subject.
            version: the version.
            permanent: whether it is removed for good; it has to be deleted before.

        Raises:
            SchemaRegistryError: it does not exist, or another schema refers to it (42206).
        """
        path = ("subjects", subject, "versions", version)
        answer = self._ask("DELETE", *path, permanent=permanent)
        return int(answer)

    def delete_subject(self, subject: str, *, permanent: bool = False) -> list[int]:
        """Delete all versions of a subject; returns their numbers; see `delete_version`."""
        return [*self._ask("DELETE", "subjects", subject, permanent=permanent)]

    def config(self, subject: str | None = GLOBAL) -> dict[str, JsonValue]:
        """Return the settings of a subject, or the global ones.

        Raises:
            SchemaRegistryError: the subject has no settings of its own (40408).
        """
        return dict(self._ask("GET", "config", *_named(subject)))

    def set_config(
        self,
        subject: str | None = GLOBAL,
        *,
        level: CompatibilityLevel | None = None,
        normalize: bool | None = None,
        alias: str | None = None,
    ) -> dict[str, JsonValue]:
        """Set settings of a subject, or the global ones; returns them.

        Args:
            subject: the subject.
            level: its compatibility level.
            normalize: whether schemas are normalized before they are registered.
            alias: another subject, whose versions this one shows.
        """
        given = {"compatibility": level, "normalize": normalize, "alias": alias}
        body = {name: value for name, value in given.items() if value is not None}
        return dict(self._ask("PUT", "config", *_named(subject), body=body))

    def delete_config(self, subject: str | None = GLOBAL) -> None:
        """Delete the settings of a subject, which then has the global ones."""
        self._ask("DELETE", "config", *_named(subject))

    def mode(self, subject: str | None = GLOBAL) -> str:
        """Return the mode of a subject, or the global one.

        Raises:
            SchemaRegistryError: the subject has no mode of its own (40409).
        """
        return str(self._ask("GET", "mode", *_named(subject)).get("mode"))

    def set_mode(
        self, mode: RegistryMode, subject: str | None = GLOBAL, *, force: bool = False
    ) -> None:
        """Set the mode of a subject, or the global one.

        Args:
            mode: the mode.
            subject: the subject.
            force: whether IMPORT may be set although there are schemas.
        """
        self._ask("PUT", "mode", *_named(subject), body={"mode": mode}, force=force)

    def delete_mode(self, subject: str) -> None:
        """Delete the mode of a subject, which then has the global one."""
        self._ask("DELETE", "mode", subject)

    def _ask(
        self, method: str, *path: str | int, body: object = None, **query: str | bool | None
    ) -> JsonValue:
        """Send a request; parameters that are None or false are left out."""
        # False is left out: an older registry refuses no parameter that it does not get.
        given = {name: value for name, value in query.items() if value}
        texts = {name: value if isinstance(value, str) else "true" for name, value in given.items()}
        answer = self._connection.request(
            method, path, query=texts or None, body=body, patience_ms=self._patience_ms
        )
        if answer is None:
            raise SchemaRegistryError(f"the answer to {method} {'/'.join(map(str, path))} is null")
        return answer


def _named(subject: str | None) -> Sequence[str]:
    return () if subject is None else (subject,)
