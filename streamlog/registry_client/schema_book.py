"""Schema book: the schemas that an app has met, and one request for each that it has not.

| A schema is | `find` |
|---|---|
| known | answers, also while the registry is down: an id never changes its schema |
| unknown | is asked for by the thread of the book, together with all others |
| not found, or not answered within `WAIT_MS` | raises for `FAILED_MS`, then asks again |

A worker asks with `request` before it processes records, and leaves those records alone until
`is_settled`; its own threads never wait here (`may_block`). Everything else just calls `find`.

Rule: one thread sends the requests, so two tasks never ask for one schema twice, and a registry
that comes back is not met by a crowd.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from streamlog import repeated
from streamlog.clock import Clock, SystemClock
from streamlog.errors import SchemaRegistryError, SerdeError, StreamlogError
from streamlog.registry_client.registry_settings import RegistrySettings
from streamlog.registry_client.rest_api import NOT_FOUND, RegisteredVersion, RegistryClient
from streamlog.schemas import Schema
from streamlog.serdes.registered.framing import SchemaKey
from streamlog.serdes.registered.schema_source import RegisteredSchema

WAIT_MS: Final = 60_000
"""How long records wait for a schema while the registry does not answer."""
NOT_FOUND_MS: Final = 2_000
"""How long a schema that the registry does not have is asked for: another of its servers may have
registered it just now."""
FAILED_MS: Final = 30_000
"""How long a schema that was not found stays so without another request."""
KNOWN_MAX: Final = 10_000
"""The most schemas that are kept; those that were used longest ago are dropped."""
WAY_OUT: Final = "a worker registers it when it starts, or `streamlog schemas register` does"
PAUSE_MS: Final = 250
"""The first pause between two rounds of requests; each further pause is twice as long."""
PAUSE_MAX_MS: Final = 5_000

log = repeated.logger(__name__)


@dataclass(slots=True)
class _Wanted:
    """A schema that is asked for."""

    since_ms: int
    reason: str = "the first request is under way"


class _Failure(msgspec.Struct, frozen=True):
    """A schema that was not found."""

    reason: str
    until_ms: int


class SchemaBook:
    """The source of an app's serdes (`SchemaSource`) in front of a registry."""

    def __init__(
        self,
        settings: RegistrySettings,
        *,
        clock: Clock | None = None,
        wait_ms: int = WAIT_MS,
        may_block: bool = True,
        app_id: str | None = None,
    ) -> None:
        """Create a book that knows nothing; it sends no request yet.

        Args:
            settings: where the registry is.
            clock: by default the system's.
            wait_ms: how long a schema is asked for while the registry does not answer.
            may_block: whether `find` and `identify` send requests and wait for them.
            app_id: the app whose own subjects count for `identify` as well, if any.
        """
        self.settings = settings
        self.may_block = may_block
        self._app_id = app_id
        self.requests = 0
        """The number of requests for schemas so far."""
        self._clock = clock or SystemClock()
        self._wait_ms = wait_ms
        self.client = RegistryClient(settings, clock=self._clock)
        """Sends the requests."""
        self._known: OrderedDict[SchemaKey, RegisteredSchema] = OrderedDict()
        self._identified: dict[tuple[str, Schema], RegisteredSchema] = {}
        self._wanted: dict[SchemaKey, _Wanted] = {}
        self._failed: dict[SchemaKey, _Failure] = {}
        self._settled = threading.Condition()
        """Guards all of the above; notified when a schema is settled."""
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def find(self, key: SchemaKey) -> RegisteredSchema:
        """Return a schema; see `SchemaSource`."""
        with self._settled:
            found = self._known.get(key)
            if found is not None:
                self._known.move_to_end(key)
                return found
        self.request([key])
        with self._settled:
            if self.may_block:
                # The thread of the book bounds the wait: it settles each schema in time.
                self._settled.wait_for(lambda: key not in self._wanted)
            found, failure, wanted = (
                self._known.get(key),
                self._failed.get(key),
                self._wanted.get(key),
            )
        if found is not None:
            return found
        reason = failure.reason if failure is not None else wanted.reason if wanted else "closed"
        raise SerdeError(f"its schema ({key}) is unknown: {reason}")

    def identify(self, subject: str, schema: Schema) -> RegisteredSchema:
        """Return a schema with its id; see `SchemaSource`."""
        found = self._identified.get((subject, schema))
        if found is not None:
            return found
        if not self.may_block:
            raise SerdeError(
                f"its schema is not registered under {subject!r}, and this worker only reads what "
                "has it: write to the topic in the topology, or register the schema with "
                "`streamlog schemas register`"
            )
        try:
            version = self._lookup(subject, schema)
        except StreamlogError as error:
            is_new = isinstance(error, SchemaRegistryError) and error.status == NOT_FOUND
            reason = WAY_OUT if is_new else str(error)
            raise SerdeError(f"its schema is not registered under {subject!r}: {reason}") from error
        return self.note(version)

    def _lookup(self, subject: str, schema: Schema) -> RegisteredVersion:
        try:
            return self.client.lookup(subject, schema)
        except SchemaRegistryError as error:
            if error.status != NOT_FOUND or self._app_id is None:
                raise
        # Workers register the schema of a topic that the app only reads in a subject of the app's
        # own. A record that a person sends to try the app out is written by that id.
        return self.client.lookup(f"{self._app_id}-{subject}", schema)

    def note(self, version: RegisteredVersion) -> RegisteredSchema:
        """Remember a version that was registered or looked up, and return its schema."""
        # A schema with references is asked for when it is read: what it refers to comes with it.
        found = RegisteredSchema(version.id, version.guid, version.schema)
        with self._settled:
            self._identified[version.subject, version.schema] = found
            if not version.schema.references:
                self._keep(SchemaKey(version.id), found)
                if version.guid is not None:
                    self._keep(SchemaKey(None, version.guid), found)
        return found

    def request(self, keys: Iterable[SchemaKey]) -> None:
        """Ask for schemas in the background, unless they are known, asked for, or failed."""
        now_ms = self._clock.now_ms()
        with self._settled:
            for key in keys:
                failure = self._failed.get(key)
                if failure is not None and now_ms < failure.until_ms:
                    continue
                # One thread asks for everything that is wanted: a key that is there needs no more.
                if key in self._known or key in self._wanted or self._closing.is_set():
                    continue
                self._failed.pop(key, None)
                self._wanted[key] = _Wanted(now_ms)
            if self._wanted and self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="streamlog-schemas", daemon=True
                )
                self._thread.start()

    def is_settled(self, key: SchemaKey) -> bool:
        """Return whether `find` would answer or raise without another request."""
        return key not in self._wanted

    def is_known(self, key: SchemaKey) -> bool:
        """Return whether a schema is known."""
        return key in self._known

    def waiting(self) -> list[str]:
        """Return what is waited for, a sentence each."""
        now_ms = self._clock.now_ms()
        with self._settled:
            return [
                f"the schema with {key}, for {(now_ms - each.since_ms) // 1000} of at most "
                f"{self._wait_ms // 1000} s: {each.reason}"
                for key, each in self._wanted.items()
            ]

    def close(self) -> None:
        """End the thread; schemas that are asked for stay unknown."""
        self._closing.set()
        self.client.close()
        with self._settled:
            self._wanted.clear()
            self._settled.notify_all()

    def _run(self) -> None:
        """Ask for everything that is wanted, round by round, until nothing is left."""
        pause_ms = PAUSE_MS
        while True:
            with self._settled:
                keys = [*self._wanted]
                if not keys or self._closing.is_set():
                    # Under the lock: a request from now on starts another thread.
                    self._thread = None
                    return
            # Every one is asked for in each round, however many are answered.
            if not sum(map(self._ask, keys)):
                self._closing.wait(pause_ms / 1000)
                pause_ms = min(2 * pause_ms, PAUSE_MAX_MS)

    def _ask(self, key: SchemaKey) -> bool:
        """Send one request; returns whether the schema is settled now."""
        self.requests += 1
        # 1. No server answers: asked again until WAIT_MS, as the registry may come back.
        # 2. There is no such schema (404): only until NOT_FOUND_MS. The producer had its id from a
        #    server that may be a moment ahead of the one that was asked.
        # 3. Any other refusal, such as a wrong password: at once, as asking again changes nothing.
        limit_ms = self._wait_ms
        try:
            found = self.client.find(key)
        except StreamlogError as error:
            reason = str(error)
            if isinstance(error, SchemaRegistryError):
                limit_ms = min(limit_ms, NOT_FOUND_MS if error.status == NOT_FOUND else 0)
        else:
            with self._settled:
                self._keep(key, found)
                self._wanted.pop(key, None)
                self._settled.notify_all()
            return True
        now_ms = self._clock.now_ms()
        with self._settled:
            # The book was closed meanwhile.
            wanted = self._wanted.get(key)
            if wanted is None:
                return True
            wanted.reason = reason
            if now_ms - wanted.since_ms < limit_ms:
                log.warning("records wait for the schema with %s: %s", key, reason)
                return False
            del self._wanted[key]
            self._failed[key] = _Failure(reason, now_ms + FAILED_MS)
            # As many as are kept of the known ones: ids of a damaged topic may be anything.
            while len(self._failed) > KNOWN_MAX:
                self._failed.pop(next(iter(self._failed)))
            self._settled.notify_all()
        return True

    def _keep(self, key: SchemaKey, found: RegisteredSchema) -> None:
        self._known[key] = found
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def __reduce__(self) -> tuple[object, ...]:
        """Open another book in another process, with the schemas that this one knows."""
        with self._settled:
            return _again, (self.settings, dict(self._known), dict(self._identified))


def _again(
    settings: RegistrySettings,
    known: dict[SchemaKey, RegisteredSchema],
    identified: dict[tuple[str, Schema], RegisteredSchema],
) -> SchemaBook:
    book = SchemaBook(settings)
    book._known.update(known)  # noqa: SLF001 - its own class
    book._identified.update(identified)  # noqa: SLF001 - the same
    return book
