"""ConfigControl and QuotaControl: the controller's decisions on settings and client quotas.

All changes of one resource or entity in a request are made, or none of them. The tables of settings
(`broker/config`) check every value before anything is recorded.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from streamlog import repeated
from streamlog.broker.config.broker import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from streamlog.broker.config.resources import (
    ENTITY_TYPES,
    GROUP_RESOURCE,
    IP,
    IP_QUOTAS,
    KEPT_ONLY,
    RATES,
    RESOURCE_NAMES,
    RESOURCE_TABLES,
    Entity,
    check_settings,
    effective,
    entity_of,
    resource_settings,
)
from streamlog.broker.config.settings import (
    LONG_MAX,
    Setting,
    SettingOperation,
    SettingSource,
    alter_settings,
)
from streamlog.broker.quorum.controller.decision import (
    MIN_INSYNC,
    ControllerContext,
    Decision,
    DecisionHandlers,
    decides,
    respond,
)
from streamlog.broker.quorum.metadata.cluster_metadata import (
    ALL_BROKERS,
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    quota_record,
)
from streamlog.broker.quorum.metadata.metadata_records import MetadataRecord
from streamlog.errors import ConfigError, LogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.metadata_log import ConfigRecord, PartitionChangeRecord
from streamlog.protocol.messages.sasl_acls_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)
from streamlog.protocol.messages.topics_and_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

ADVERTISED = "advertised.listeners"

ResourceKey = tuple[int, str]
"""Type and name of a resource."""
Change = tuple[str, SettingOperation, str | None]
Asked = tuple[ResourceKey, list[tuple[str, int, str | None]]]


class _Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource whose settings can be changed: what it has now, and what it accepts."""

    settings: Mapping[str, Setting]
    own: Mapping[str, str]
    """The settings of the resource itself, which changes apply to."""
    effective: Mapping[str, str]
    """All settings in force: its own, and inherited ones where it has none."""
    check: Callable[[Mapping[str, str]], object]
    """Raises if these own settings can't be in force together."""


class ConfigControl:
    """Settings, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict(
            [
                decides(IncrementalAlterConfigsRequest, self.alter),
                decides(AlterConfigsRequest, self.replace),
            ]
        )

    def alter(
        self, request: IncrementalAlterConfigsRequest, _: int, __: int
    ) -> Decision[IncrementalAlterConfigsResponse]:
        """Change single settings (KIP-339); for each resource, all of its changes or none."""
        asked: list[Asked] = [
            (
                (each.resource_type, each.resource_name),
                [(config.name, config.config_operation, config.value) for config in each.configs],
            )
            for each in request.resources
        ]
        responses, records = self._altered(asked, replacing=False)
        response = IncrementalAlterConfigsResponse(responses=responses)
        return respond(response, () if request.validate_only else records)

    def replace(
        self, request: AlterConfigsRequest, _: int, __: int
    ) -> Decision[AlterConfigsResponse]:
        """Replace all settings of resources; a setting that is not named returns to its default."""
        asked: list[Asked] = [
            (
                (each.resource_type, each.resource_name),
                [(config.name, int(SettingOperation.SET), config.value) for config in each.configs],
            )
            for each in request.resources
        ]
        responses, records = self._altered(asked, replacing=True)
        response = AlterConfigsResponse(responses=responses)
        return respond(response, () if request.validate_only else records)

    def _altered(
        self, asked: Sequence[Asked], *, replacing: bool
    ) -> tuple[list[AlterConfigsResourceResponse], list[MetadataRecord]]:
        counts = Counter(resource_key for resource_key, _ in asked)
        records: list[MetadataRecord] = []
        responses = []
        for resource_key, changes in asked:
            kind, name = resource_key
            response = AlterConfigsResourceResponse(
                error_message=None, resource_type=kind, resource_name=name
            )
            try:
                # Each entry is compared with the committed settings, not with the outcome of the
                # entries before it: the records of two entries for one resource could contradict
                # each other.
                _refuse_repeated(f"resource {name!r}", counts[resource_key])
                resource = self._resource(kind, name)
                after = _after(resource, changes, replacing=replacing)
            except ConfigError as error:
                response.error_code, response.error_message = ErrorCode.INVALID_CONFIG, str(error)
            except LogError as error:
                response.error_code, response.error_message = error.code, str(error)
            else:
                records += self._records(resource_key, resource.own, after)
            responses.append(response)
        return responses, records

    def _records(
        self, resource_key: ResourceKey, before: Mapping[str, str], after: Mapping[str, str]
    ) -> Iterator[MetadataRecord]:
        kind, resource = resource_key
        # Sorted, because the order of a set of texts differs from run to run.
        for name in sorted({*before, *after}):
            if before.get(name) != after.get(name):
                yield ConfigRecord(
                    resource_type=kind, resource_name=resource, name=name, value=after.get(name)
                )
        if before.get(MIN_INSYNC) != after.get(MIN_INSYNC):
            yield from self._without_eligible(None if kind == BROKER_RESOURCE else resource)

    def _without_eligible(self, topic: str | None) -> Iterator[MetadataRecord]:
        """Empty the ELR of partitions whose `min.insync.replicas` changes (KIP-966).

          1. {1} is in sync, {2, 3} are eligible, `min.insync.replicas` is 2: nothing is committed.
          2. The setting becomes 1: broker 1 now commits records that 2 and 3 lack.
          3. Broker 1 dies. If 2 were still eligible, it would lead without these records.
        The change is in the same batch as the setting, so that a leader learns both at once. A
        partition without replicas in sync keeps its ELR: it has no leader that could commit.
        """
        for each, number, partition in self._context.metadata.partitions():
            if partition.elr and partition.isr and topic in (None, each.name):
                yield PartitionChangeRecord(
                    partition_id=number, topic_id=each.topic_id, eligible_leader_replicas=[]
                )

    def _resource(self, kind: int, name: str) -> _Resource:
        metadata = self._context.metadata
        if kind == TOPIC_RESOURCE:
            return self._topic(name)
        if kind in RESOURCE_TABLES:
            return self._named(kind, name)
        brokers = {str(broker_id) for broker_id in metadata.brokers} | {str(self._context.node_id)}
        if kind == BROKER_RESOURCE and (name == ALL_BROKERS or name in brokers):
            return self._broker(name)
        known = sorted(brokers, key=int)
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"unknown resource {name!r} of type {kind}: use a topic (type 2), a group (32), client"
            f" metrics (16), or one of brokers {', '.join(known)} (4; without a name: all brokers)",
        )

    def _topic(self, name: str) -> _Resource:
        if self._context.metadata.topic(name) is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")
        config = self._context.node_config().topic
        own = self._context.metadata.config(TOPIC_RESOURCE, name)
        return _Resource(
            settings=TOPIC_SETTINGS,
            own=own,
            effective=config.override(own).as_texts(),
            check=config.override,
        )

    def _named(self, kind: int, name: str) -> _Resource:
        """Return a group or a metrics subscription of clients, which need not exist yet."""
        if not name:
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"the resource of type {kind} ({RESOURCE_NAMES[kind]}) has an empty name",
            )
        own = self._context.metadata.config(kind, name)
        broker = self._context.node_config()

        def check(texts: Mapping[str, str]) -> object:
            if kind == GROUP_RESOURCE:
                return broker.group.for_group(texts)
            return check_settings(kind, texts)

        return _Resource(
            settings=resource_settings(kind),
            own=own,
            effective=effective(kind, own, broker.as_texts()),
            check=check,
        )

    def _broker(self, name: str) -> _Resource:
        config = self._context.config
        own = self._context.metadata.config(BROKER_RESOURCE, name)
        default = self._context.metadata.config(BROKER_RESOURCE, ALL_BROKERS)

        # The layers, from weak to strong: this node's file, all brokers, one broker.
        def with_own(texts: Mapping[str, str]) -> BrokerConfig:
            if name == ALL_BROKERS:
                return config.override(texts)
            return config.override(default).override(texts)

        return _Resource(
            settings=BROKER_SETTINGS,
            own=own,
            effective=with_own(own).as_texts(),
            check=lambda texts: self._check_topics(with_own(texts)),
        )

    def _check_topics(self, config: BrokerConfig) -> None:
        # Settings that are valid one by one can contradict each other: a broker's default has to
        # fit the settings of every topic that inherits it. `override` raises if it does not.
        metadata = self._context.metadata
        for name in metadata.topic_names():
            config.topic.override(metadata.config(TOPIC_RESOURCE, name))


def inherited_source(context: ControllerContext, topic_setting: str) -> SettingSource:
    """Return where the value of a setting comes from that the topic itself does not set."""
    name = TOPIC_SETTINGS[topic_setting].broker_name
    if not name:
        return SettingSource.DEFAULT
    setting = BROKER_SETTINGS[name]
    for resource, source in (
        (str(context.node_id), SettingSource.BROKER),
        ("", SettingSource.ALL_BROKERS),
    ):
        if name in context.metadata.config(BROKER_RESOURCE, resource):
            return source
    # The file may state the default, so only a different value shows that the file sets it.
    given = context.config.as_text(name)
    return SettingSource.DEFAULT if given == setting.text(setting.default) else SettingSource.STATIC


def _after(
    resource: _Resource, changes: Iterable[tuple[str, int, str | None]], *, replacing: bool
) -> dict[str, str]:
    """Return the resource's own settings after the changes, checked.

    Raises:
        LogError: INVALID_REQUEST: a null value, an unknown operation, or a name given twice.
        ConfigError: a value is invalid, or a setting can't be changed while the broker runs.
    """
    named = [(name, _operation(operation), text) for name, operation, text in changes]
    for name, operation, text in named:
        # DescribeConfigs shows null for a secret, so a client that writes back all settings as it
        # has read them sends null.
        if (
            text is None
            and operation is not SettingOperation.DELETE
            and not _is_secret(resource, name)
        ):
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"{name} has a null value: give it one, or delete it for the default",
            )
    for name, count in Counter(name for name, _, _ in named).items():
        _refuse_repeated(name, count)
    if replacing:
        # A client that reads all settings, changes one and writes all of them back also writes
        # read-only ones: these are accepted if they are unchanged.
        named = [each for each in named if not _is_fixed_as_it_is(resource, each)]
    own: Mapping[str, str] = {} if replacing else resource.own
    after = alter_settings(resource.settings, own, resource.effective, named)
    resource.check(after)
    return after


def _is_secret(resource: _Resource, name: str) -> bool:
    setting = resource.settings.get(name)
    return setting is not None and setting.is_secret


def _is_fixed_as_it_is(resource: _Resource, change: Change) -> bool:
    name, _, text = change
    setting = resource.settings.get(name)
    if setting is None or setting.is_dynamic:
        return False
    # Clients see neither of these as they are stored: secrets are shown as null, and the advertised
    # listeners as fits the client's connection. So they can't be compared.
    is_unlike = (setting.is_secret and text is None) or name == ADVERTISED
    return is_unlike or resource.effective[name] == text


def _operation(number: int) -> SettingOperation:
    try:
        return SettingOperation(number)
    except ValueError:
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"unknown operation {number}: use set (0), delete (1), append (2) or subtract (3)",
        ) from None


def _refuse_repeated(what: str, count: int) -> None:
    if count > 1:
        raise error_for(ErrorCode.INVALID_REQUEST, f"the request names {what} {count} times")


QUOTAS_MAX = 10_000
"""The most entities with quotas: every broker searches them for each of its clients."""


_log = repeated.logger(__name__)


class QuotaControl:
    """The quotas of clients, for the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        self._context = context

    def handlers(self) -> DecisionHandlers:
        """Return the handler of each kind of request."""
        return dict([decides(AlterClientQuotasRequest, self.alter)])

    def alter(
        self, request: AlterClientQuotasRequest, _: int, __: int
    ) -> Decision[AlterClientQuotasResponse]:
        """Change quotas (KIP-546); for each entity, all of its changes or none."""
        counts = Counter(_parts(entry.entity) for entry in request.entries)
        quotas = self._context.metadata.quotas()
        known = {*quotas}
        records: list[MetadataRecord] = []
        entries = []
        for entry in request.entries:
            answer = AlteredQuota(error_message=None, entity=entry.entity)
            try:
                if counts[_parts(entry.entity)] > 1:
                    raise _refusal("the request contains this entity more than once")
                entity, changes = _checked(entry)
                altered = quotas.alter(entity, changes)
                # A table that exceeds the limit already can still be changed, but not grow.
                if len(altered) > max(QUOTAS_MAX, len(known)):
                    detail = f"there are quotas for {QUOTAS_MAX} entities already: remove some"
                    raise error_for(ErrorCode.POLICY_VIOLATION, detail)
            except LogError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            else:
                # Only now: a refused entity takes no room from the entries after it.
                quotas = altered
                _warn_not_enforced(entity, changes)
                records += self._records(entity, changes)
            entries.append(answer)
        response = AlterClientQuotasResponse(entries=entries)
        return respond(response, () if request.validate_only else records)

    def _records(
        self, entity: Entity, changes: Mapping[str, float | None]
    ) -> Iterator[MetadataRecord]:
        own = self._context.metadata.quotas().of(entity)
        for key, rate in changes.items():
            if own.get(key) != rate:
                yield quota_record(entity, key, rate)


def _parts(entity: Sequence[QuotaEntity]) -> Entity:
    return entity_of((part.entity_type, part.entity_name) for part in entity)


def _checked(entry: QuotaAlteration) -> tuple[Entity, dict[str, float | None]]:
    entity = _checked_entity(entry.entity)
    known = IP_QUOTAS if IP in dict(entity) else (*RATES, *KEPT_ONLY)
    changes: dict[str, float | None] = {}
    for operation in entry.ops:
        if operation.key in changes:
            raise _refusal(f"the request contains {operation.key} more than once for this entity")
        changes[operation.key] = _checked_value(operation, known)
    return entity, changes


def _checked_entity(entity: Sequence[QuotaEntity]) -> Entity:
    kinds = [part.entity_type for part in entity]
    if not kinds or len({*kinds}) < len(kinds):
        given = f"the types {', '.join(kinds)}" if kinds else "no type"
        raise _refusal(f"the entity has {given}: name each type of an entity once")
    for part in entity:
        if part.entity_type not in ENTITY_TYPES:
            raise _refusal(
                f"unknown type {part.entity_type!r}: quotas are for {', '.join(ENTITY_TYPES)}"
            )
        if part.entity_name == "":
            raise _refusal(f"the name of a {part.entity_type} is empty: use null for the default")
    if IP in kinds and len(kinds) > 1:
        raise _refusal("quotas of an address can't be combined with a user or client id")
    return _parts(entity)


def _checked_value(operation: QuotaOperation, known: Sequence[str]) -> float | None:
    key, value = operation.key, operation.value
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0)
        raise _refusal(
            f"unknown quota {key!r}: did you mean {near[0]!r}? There are: {', '.join(known)}"
        )
    if operation.remove:
        return None
    if key in KEPT_ONLY:
        if not 0 < value < LONG_MAX:
            raise _refusal(f"{key}={value}: it has to be a number above 0")
        return value
    if not 1 <= value < LONG_MAX or value != int(value):
        raise _refusal(f"{key}={value}: it has to be a whole number above 0, in bytes per second")
    return int(value)


def _warn_not_enforced(entity: Entity, changes: Mapping[str, float | None]) -> None:
    for key, value in changes.items():
        if value is not None and key not in RATES:
            _log.warning("%s=%s of %s is stored, but not enforced", key, value, dict(entity))


def _refusal(detail: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, detail)
