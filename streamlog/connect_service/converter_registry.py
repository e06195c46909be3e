"""Converter registry: a schema registry as converters ask it, over its REST API.

| The registry | a converter gets |
|---|---|
| does not answer | `Retriable`: the records wait |
| refuses the client: its password, its certificate | `ConfigError`: the task fails |
| refuses a schema, or does not have it | `BadRecord`, for `REFUSED_MS` without another request |

Rule: each method blocks, and may be called by several threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from streamlog.clock import Clock, SystemClock
from streamlog.connect.connector_errors import BadRecord, Retriable
from streamlog.connect.converters.registry_converter import RegistryConverterSettings
from streamlog.errors import ConfigError, ConnectionLost, SchemaRegistryError
from streamlog.registry_client.registry_settings import (
    AUTH,
    CA_FILE,
    CERTIFICATE_FILE,
    KEY_FILE,
    KEY_PASSWORD,
    URL,
    RegistrySettings,
)
from streamlog.registry_client.rest_api import NOT_FOUND, RegistryClient
from streamlog.registry_client.schema_book import NOT_FOUND_MS, PAUSE_MS
from streamlog.schemas import Schema
from streamlog.serdes.registered.framing import SchemaKey
from streamlog.serdes.registered.schema_source import RegisteredSchema

REFUSED_MS: Final = 30_000
"""How long a refusal holds: bad records must not be a request each."""
REFUSED_KEPT: Final = 1_000
"""The most refusals that are kept; the oldest are dropped."""
_UNAUTHORIZED: Final = (401, 403)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    until_ms: int


def registry_settings(access: RegistryConverterSettings) -> RegistrySettings:
    """Return the settings of a client.

    Raises:
        ConfigError: a URL is malformed, or a secret is still a reference.
    """
    user, password = access.basic_auth_user_info, access.ssl_key_password
    return RegistrySettings.of(
        {
            URL: access.schema_registry_url,
            AUTH: "" if user is None else user.reveal(),
            CA_FILE: access.ssl_ca_location,
            CERTIFICATE_FILE: access.ssl_certificate_location,
            KEY_FILE: access.ssl_key_location,
            KEY_PASSWORD: "" if password is None else password.reveal(),
        }
    )


class RestConverterRegistry:
    """A registry behind a REST API; a `ConverterRegistry`."""

    def __init__(self, access: RegistryConverterSettings, clock: Clock | None = None) -> None:
        """Create it; secrets and files are looked at with the first question.

        Raises:
            ConfigError: a URL is malformed.
        """
        RegistrySettings.of(access.schema_registry_url)
        self._access, self._clock = access, clock or SystemClock()
        self._opened: RegistryClient | None = None
        self._refused: dict[object, _Refusal] = {}
        self._lock = threading.Lock()
        """Guards the refusals."""

    @property
    def _client(self) -> RegistryClient:
        # Two threads may make one each; either of them will do.
        if self._opened is None:
            self._opened = RegistryClient(registry_settings(self._access), clock=self._clock)
        return self._opened

    def find(self, key: SchemaKey) -> RegisteredSchema:
        """Return a schema by its id; see `ConverterRegistry`."""
        return self._asked(key, f"the schema with {key}", lambda: self._find(key))

    def register(self, subject: str, schema: Schema, *, normalize: bool) -> RegisteredSchema:
        """Register a schema; see `ConverterRegistry`."""

        def ask() -> RegisteredSchema:
            found = self._client.register(subject, schema, normalize=normalize)
            return RegisteredSchema(found, None, schema)

        return self._asked(("register", subject, schema), f"a schema of subject {subject}", ask)

    def lookup(self, subject: str, schema: Schema, *, normalize: bool) -> RegisteredSchema:
        """Return a schema of a subject with its id; see `ConverterRegistry`."""

        def ask() -> RegisteredSchema:
            found = self._client.lookup(subject, schema, normalize=normalize)
            return RegisteredSchema(found.id, found.guid, schema)

        return self._asked(("lookup", subject, schema), f"a schema of subject {subject}", ask)

    def latest(self, subject: str) -> RegisteredSchema:
        """Return the latest version of a subject; see `ConverterRegistry`."""

        def ask() -> RegisteredSchema:
            found = self._client.latest(subject)
            if found is None:
                raise BadRecord(
                    f"use.latest.version: the subject {subject} has no version; register one"
                )
            referenced = self._client.referenced(found.schema)
            return RegisteredSchema(found.id, found.guid, found.schema, referenced)

        return self._asked(("latest", subject), f"subject {subject}", ask)

    def _find(self, key: SchemaKey) -> RegisteredSchema:
        # Another of the registry's servers may have registered it just now.
        deadline_ms = self._clock.now_ms() + NOT_FOUND_MS
        while True:
            try:
                return self._client.find(key)
            except SchemaRegistryError as error:
                if error.status != NOT_FOUND or self._clock.now_ms() >= deadline_ms:
                    raise
            threading.Event().wait(PAUSE_MS / 1000)

    def _asked(self, question: object, what: str, ask: Callable[[], T]) -> T:
        """Return an answer of the registry, or raise as converters expect it."""
        with self._lock:
            refused = self._refused.get(question)
        if refused is not None and self._clock.now_ms() < refused.until_ms:
            raise BadRecord(refused.reason)
        try:
            return ask()
        except ConnectionLost as error:
            raise Retriable(str(error)) from error
        except SchemaRegistryError as error:
            # Without a status, one side distrusts the other's certificate.
            if error.status in (0, *_UNAUTHORIZED):
                raise ConfigError(f"the schema registry refuses the converter: {error}") from error
            reason = f"the schema registry refuses {what}: {error}"
            self._note(question, reason)
            raise BadRecord(reason) from error
        except BadRecord as error:
            self._note(question, str(error))
            raise

    def _note(self, question: object, reason: str) -> None:
        with self._lock:
            self._refused[question] = _Refusal(reason, self._clock.now_ms() + REFUSED_MS)
            while len(self._refused) > REFUSED_KEPT:
                del self._refused[next(iter(self._refused))]
