"""Refusals: the errors of the REST API, with Confluent's codes and one sentence each."""

from __future__ import annotations

from typing import Final

from streamlog.errors import StreamlogError

SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
SUBJECT_SOFT_DELETED: Final = 40404
SUBJECT_NOT_SOFT_DELETED: Final = 40405
VERSION_SOFT_DELETED: Final = 40406
VERSION_NOT_SOFT_DELETED: Final = 40407
LEVEL_NOT_CONFIGURED: Final = 40408
MODE_NOT_CONFIGURED: Final = 40409
INCOMPATIBLE_SCHEMA: Final = 40901
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
INVALID_LEVEL: Final = 42203
INVALID_MODE: Final = 42204
NOT_PERMITTED: Final = 42205
REFERENCE_EXISTS: Final = 42206
ID_DOES_NOT_MATCH: Final = 42207
INVALID_SUBJECT: Final = 42208
SCHEMA_TOO_LARGE: Final = 42209
STORE_ERROR: Final = 50001
TIMED_OUT: Final = 50002
FORWARDING_FAILED: Final = 50003
NO_PRIMARY: Final = 50004
VERSION_MAX: Final = 2**31 - 1


class RegistryRefusal(StreamlogError):
    """A request that the registry refuses; the code is Confluent's."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.error_code = code
        """Confluent's code: an HTTP status, or a status with two more digits."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.error_code // 100 if self.error_code > 1_000 else self.error_code  # noqa: PLR2004 - codes have five digits, statuses three


def subject_not_found(subject: str) -> RegistryRefusal:
    """Return the refusal of a subject that does not exist."""
    return RegistryRefusal(SUBJECT_NOT_FOUND, f"Subject '{subject}' not found.")


def version_not_found(version: int | str) -> RegistryRefusal:
    """Return the refusal of a version that does not exist."""
    return RegistryRefusal(VERSION_NOT_FOUND, f"Version {version} not found.")


def schema_not_found(schema_id: int | str | None = None) -> RegistryRefusal:
    """Return the refusal of a schema that is not registered."""
    which = "" if schema_id is None else f" {schema_id}"
    return RegistryRefusal(SCHEMA_NOT_FOUND, f"Schema{which} not found")


def invalid_schema(reason: str) -> RegistryRefusal:
    """Return the refusal of a schema that is not one of its format."""
    return RegistryRefusal(INVALID_SCHEMA, f"Invalid schema: {reason}")


def invalid_version(version: str) -> RegistryRefusal:
    """Return the refusal of a text that is no version."""
    return RegistryRefusal(
        INVALID_VERSION,
        f"The specified version '{version[:40]}' is not a valid version id. Allowed values are"
        ' between [1, 2^31-1] and the string "latest"',
    )


def not_permitted(reason: str) -> RegistryRefusal:
    """Return the refusal of what the mode, or another schema, does not permit."""
    return RegistryRefusal(NOT_PERMITTED, reason)


def reference_exists(subject: str, version: int) -> RegistryRefusal:
    """Return the refusal to delete a version that other schemas refer to."""
    return RegistryRefusal(
        REFERENCE_EXISTS,
        f"One or more references exist to the schema subject '{subject}' version {version}:"
        " delete those schemas first (GET .../referencedby lists their ids)",
    )
