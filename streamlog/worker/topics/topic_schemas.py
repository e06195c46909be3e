"""Topic schemas: the schemas of an app's topics in the registry, before its worker starts.

1. Each schema is looked up in its subject. One that is new is compared with the versions that the
   subject has, at the subject's level; and what the app reads, with the latest version.
2. If anything breaks, the worker refuses to start, and says what and where (exit code 8). With
   `schema_policy="check"`, a schema that is new is a reason as well.
3. Schemas of topics that the app writes are registered. A schema of a topic that it only reads is
   registered under `<app>-<topic>-value`: rows in state and internal topics are written with it,
   and the topic's own subject belongs to those that write the topic.

Rule: everything is compared before anything is registered, so a refusal changes nothing. Calls to
the registry block, so they run in a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from streamlog import repeated
from streamlog.broker.config.broker import BrokerConfig
from streamlog.clock import Clock
from streamlog.contracts.contract import Contract
from streamlog.errors import ConfigError, InvalidSchema, SchemaIncompatible, SchemaRegistryError
from streamlog.log import EMBEDDED
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.registry_client import (
    RegisteredVersion,
    RegistryClient,
    RegistrySettings,
    SchemaBook,
)
from streamlog.registry_client.rest_api import NOT_FOUND
from streamlog.schemas import (
    CompatibilityLevel,
    ParsedSchema,
    Schema,
    SchemaType,
    parse_schema,
)
from streamlog.schemas.compatibility import check
from streamlog.schemas.protobuf.protobuf_schema import ProtobufSchema
from streamlog.schemas.protobuf.renumbering import renumbered_fields
from streamlog.serdes.registered import RegistrySerde

LISTENER: Final = "schema.registry.listener"
ANY_PORT: Final = "127.0.0.1:0"
"""Other processes on the embedded log find the port in its directory."""
START_MS: Final = 30_000
"""How long a worker that starts waits for a registry that does not answer."""
REASONS_MAX: Final = 20
"""The most differences of one schema that a refusal lists."""

logger = repeated.logger(__name__)


@dataclass(frozen=True, slots=True)
class _Use:
    """A schema of the app, and what the app does with the topic."""

    spec: TopicSpec
    serde: RegistrySerde[Any]
    is_written: bool
    is_read: bool

    @property
    def policy(self) -> str:
        return self.spec.schema_policy


class TopicSchemas:
    """The schemas of an app's topics; `SchemaAssigner` for topics that it sends to."""

    def __init__(
        self,
        contract: Contract,
        topics: Mapping[str, TopicSpec],
        settings: RegistrySettings,
        clock: Clock,
    ) -> None:
        """Create the schemas of an app.

        Args:
            contract: what the app reads and writes.
            topics: its topics, by name.
            settings: where the registry is.
            clock: for time-outs.
        """
        self._app_id = contract.app
        self._uses = [*_uses(contract, topics)]
        self.book = SchemaBook(settings, clock=clock, may_block=False)
        """The source of the app's serdes."""
        self._client = RegistryClient(settings, clock=clock, patience_ms=START_MS)

    async def prepare(self) -> None:
        """Compare all schemas with the registry's, register those that are new, and note the ids.

        Raises:
            SchemaIncompatible: a schema breaks compatibility, or is missing and may not be
                registered; nothing has changed.
            ConnectionLost: the registry does not answer.
            SchemaRegistryError: it refuses a request.
        """
        await asyncio.to_thread(self._settle, self._uses)

    async def assign(self, topic: TopicSpec) -> None:
        """Register the schemas of a topic that the app sends to; see `SchemaAssigner`."""
        uses = [
            _Use(topic, serde, is_written=True, is_read=False) for serde in registry_serdes(topic)
        ]
        await asyncio.to_thread(self._settle, uses)

    def close(self) -> None:
        """End the requests in other threads."""
        self._client.close()
        self.book.close()

    def _settle(self, uses: list[_Use]) -> None:
        known = {use.serde: self._lookup(use) for use in uses}
        refusals: list[str] = []
        for use in uses:
            if use.policy != "off":
                refusals += self._refusals(use, known[use.serde])
        if refusals:
            lines = "\n".join(f"  {each}" for each in refusals)
            raise SchemaIncompatible(
                f"app {self._app_id!r} does not start, because of its schemas:\n{lines}\n"
                "Nothing was started or changed."
            )
        # Writers and readers of one type in several topics share a schema, and so its id.
        for use in uses:
            version = known[use.serde] or self._register(use)
            if version is not None:
                use.serde.assign(self.book.note(version))

    def _lookup(self, use: _Use) -> RegisteredVersion | None:
        """Return the version of a schema; None if neither subject has it."""
        # The topic's own subject first: with the id that the writers use, rows that are passed on
        # unchanged and rows that are written anew name one schema.
        subjects = [use.serde.subject]
        if not use.is_written:
            subjects.append(self._own_subject(use))
        for subject in subjects:
            try:
                return self._client.lookup(subject, use.serde.schema)
            except SchemaRegistryError as error:
                if error.status != NOT_FOUND:
                    raise
        return None

    def _own_subject(self, use: _Use) -> str:
        """Return the subject of a topic that the app only reads."""
        return f"{self._app_id}-{use.serde.subject}"

    def _refusals(self, use: _Use, known: RegisteredVersion | None) -> Iterator[str]:
        schema, subject = use.serde.schema, use.serde.subject
        if use.is_written and known is None:
            yield from self._incompatibilities(subject, schema)
            if use.policy == "check":
                yield (
                    f"{subject}: the schema is not registered, and schema_policy='check' leaves "
                    "that to you: streamlog schemas register"
                )
        if use.is_read and not use.is_written:
            yield from self._unreadable(subject, schema)

    def _incompatibilities(self, subject: str, schema: Schema) -> Iterator[str]:
        """Yield why a registry would refuse a schema, in words."""
        numbers = self._client.versions(subject)
        if not numbers:
            return
        # The differences are computed here, for their sentences; the registry's answer comes last.
        level = self._client.level(subject)
        if not level.is_transitive:
            numbers = numbers[-1:]
        versions = [self._client.version(subject, number) for number in numbers]
        reasons = [
            f"{subject}: {message} (compared with version {versions[index].version}, {level})"
            for index, message in self._compare(schema, versions, level)
        ]
        if not reasons:
            # What the registry knows and this program does not: another level for a group of
            # versions, for instance, or a rule of its own.
            reasons = [
                f"{subject}: {text}" for text in self._client.incompatibilities(subject, schema)
            ]
        if not reasons and level is not CompatibilityLevel.NONE:
            reasons = [f"{subject}: {text}" for text in self._renumbered(schema, versions)]
        yield from reasons[:REASONS_MAX]

    def _renumbered(self, schema: Schema, versions: list[RegisteredVersion]) -> Iterator[str]:
        """Yield which fields of a Protobuf schema have moved, and the way out."""
        if schema.type is not SchemaType.PROTOBUF:
            return
        latest = versions[-1]
        try:
            new, old = self._parse(schema), self._parse(latest.schema)
        except InvalidSchema:
            return  # `_compare` has told it.
        if not isinstance(new, ProtobufSchema) or not isinstance(old, ProtobufSchema):
            return
        for text in renumbered_fields(old, new):
            yield (
                f"{text} in version {latest.version}, so records would be read wrongly: add new"
                " fields at the end of the class, or keep the number with FieldNumber"
            )

    def _unreadable(self, subject: str, schema: Schema) -> Iterator[str]:
        """Yield why the latest records of a topic can't be read, in words."""
        latest = self._client.latest(subject)
        if latest is None or latest.schema.type is not schema.type:
            return
        for _, message in self._compare(schema, [latest], CompatibilityLevel.BACKWARD)[
            :REASONS_MAX
        ]:
            version = f"version {latest.version}, which others write"
            yield f"{subject}: {version}, can't be read: {message}"

    def _compare(
        self, schema: Schema, versions: list[RegisteredVersion], level: CompatibilityLevel
    ) -> list[tuple[int, str]]:
        """Return the incompatibilities, each with the index of the version that it concerns."""
        try:
            new = self._parse(schema)
            earlier = [self._parse(each.schema) for each in versions]
            return [(each.earlier, each.message) for each in check(new, earlier, level)]
        except InvalidSchema as error:
            # A registry of another product may have accepted what this program refuses.
            logger.warning("schemas of %s can't be compared here: %s", versions[0].subject, error)
            return []

    def _parse(self, schema: Schema) -> ParsedSchema:
        return parse_schema(schema, self._client.referenced(schema), is_new=False)

    def _register(self, use: _Use) -> RegisteredVersion | None:
        """Register a schema; None if the policy leaves that to others."""
        schema = use.serde.schema
        subject = use.serde.subject if use.is_written else self._own_subject(use)
        if use.policy != "register":
            logger.warning("%s: the schema is not registered: values can't be written", subject)
            return None
        try:
            self._client.register(subject, schema)
        except SchemaRegistryError as error:
            # 1. Another worker of another version registers its schema between the comparison and
            # this request. 2. The registry compares again, and refuses.
            raise SchemaIncompatible(
                f"{subject}: the registry refuses the schema: {error}"
            ) from error
        found = self._client.lookup(subject, schema)
        logger.info("%s: registered version %d (id %d)", subject, found.version, found.id)
        return found


def registry_serdes(topic: TopicSpec) -> list[RegistrySerde[Any]]:
    """Return the serdes of a topic whose schemas a registry keeps."""
    return [serde for serde in (topic.key, topic.value) if isinstance(serde, RegistrySerde)]


def has_schemas(topics: Mapping[str, TopicSpec]) -> bool:
    """Return whether a registry keeps schemas of any of these topics."""
    return any(registry_serdes(topic) for topic in topics.values())


def registry_settings(
    given: RegistrySettings | None, topics: Mapping[str, TopicSpec], served: str | None
) -> RegistrySettings:
    """Return the settings of the app's registry.

    Args:
        given: those that the app sets.
        topics: the app's topics, for the message.
        served: the URL of the registry that the log itself serves; None if it serves none.

    Raises:
        ConfigError: there is no registry.
    """
    if given is not None:
        return given
    if served is None:
        names = ", ".join(repr(name) for name, topic in topics.items() if registry_serdes(topic))
        raise ConfigError(
            f"the schemas of {names} need a schema registry, and the log serves none: set "
            "App(schema_registry='http://HOST:8081')"
        )
    return RegistrySettings.of(served)


def registry_config(
    given: RegistrySettings | None, topics: Mapping[str, TopicSpec], *, embedded: str
) -> BrokerConfig | None:
    """Return the settings of an embedded broker that serves the app's registry; None: the usual.

    Args:
        given: the registry that the app sets; then the embedded log serves none.
        topics: the app's topics.
        embedded: the URL of the log.
    """
    if given is not None or not has_schemas(topics) or not embedded.startswith(EMBEDDED):
        return None
    return BrokerConfig().override({LISTENER: ANY_PORT})


def _uses(contract: Contract, topics: Mapping[str, TopicSpec]) -> Iterator[_Use]:
    for name, spec in topics.items():
        # A topic that is no part of the contract belongs to the app alone.
        use = contract.topics.get(name)
        for serde in registry_serdes(spec):
            is_written = use is None or bool(use.written_by)
            yield _Use(spec, serde, is_written=is_written, is_read=use is None or bool(use.read_by))
