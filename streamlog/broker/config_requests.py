"""ConfigRequests: DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, ListConfigResources.

A setting is looked for in layers, the strongest first: the topic's own, this broker's and all
brokers' that were altered while it ran, what the broker was started with, the default. What is
described is the table of `config` with the layers in which each setting has a value; a change is
made to one layer, checked as a whole, kept durably, and holds at once. A refused resource is that
one's answer and says what would be taken instead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from streamlog.broker.config import BROKER_SETTINGS, TOPIC_SETTINGS
from streamlog.broker.settings import Kind, Operation, Setting, Source, altered
from streamlog.broker.storage.log_directory import effective
from streamlog.errors import ConfigError, LogError, StreamlogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.admin import (
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from streamlog.protocol.messages.config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from streamlog.protocol.messages.replace_configs import AlterConfigsRequest, AlterConfigsResponse
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.storage.catalog import AlteredSettings
    from streamlog.broker.storage.log_directory import LogDirectory

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
RESOURCE_TYPES = frozenset({TOPIC_RESOURCE, BROKER_RESOURCE, 8, 16, 32})
"""What may be asked for: also loggers of brokers, metrics of clients, and groups."""
RESOURCE_TYPES_VERSION = 1
"""From this ListConfigResources version on types are asked for (KIP-1142)."""
ADVERTISED = "advertised.listeners"
ALL_BROKERS = ""
"""The name of the settings that hold for every broker of the cluster."""

Listener = tuple[str, int]
Change = tuple[str, Operation, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Resource:
    """What can be described and altered."""

    settings: Mapping[str, Setting]
    own: Mapping[str, str]
    """The layer that changes go to."""
    effective: Mapping[str, str]
    layers: Callable[[str], list[DescribeConfigsSynonym]]
    """Where a setting has a value, the strongest first."""
    check: Callable[[Mapping[str, str]], object]
    keep: Callable[[Mapping[str, str]], None]


class ConfigRequests:
    """Shows and changes the settings of topics and of this broker."""

    def __init__(self, directory: LogDirectory, *, on_altered: Callable[[], None]) -> None:
        """`on_altered` is called after the broker's settings have changed."""
        self._directory = directory
        self._on_altered = on_altered

    def handlers(self, listener: Callable[[Any], Listener]) -> dict[Any, Callable[..., Message]]:
        """Who answers what; `listener` tells where a client has reached this broker."""
        return {
            DescribeConfigsRequest: lambda request, at: self.describe(request, listener(at)),
            IncrementalAlterConfigsRequest: lambda request, _: self.alter(request),
            AlterConfigsRequest: lambda request, _: self.replace(request),
            ListConfigResourcesRequest: lambda request, at: self.resources(request, at.version),
        }

    def resources(
        self, request: ListConfigResourcesRequest, version: int
    ) -> ListConfigResourcesResponse:
        """What has settings that can be described. Groups, clients' metrics and loggers have none.

        Version 0 is about metrics alone.
        """
        if not set(request.resource_types) <= RESOURCE_TYPES:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        types = set(request.resource_types) or RESOURCE_TYPES
        if version < RESOURCE_TYPES_VERSION:
            types = frozenset()
        found: list[tuple[int, str]] = []
        if TOPIC_RESOURCE in types:
            found += ((TOPIC_RESOURCE, name) for name in self._directory.topics)
        if BROKER_RESOURCE in types:
            found.append((BROKER_RESOURCE, str(self._directory.node_id)))
        return ListConfigResourcesResponse(
            config_resources=[
                ConfigResource(resource_type=kind, resource_name=name) for kind, name in found
            ]
        )

    # ---- describing ----

    def describe(
        self, request: DescribeConfigsRequest, listener: Listener
    ) -> DescribeConfigsResponse:
        """All settings of topics and of this broker, or those that are asked for."""
        results = []
        for asked in request.resources:
            result = DescribeConfigsResult(
                error_message=None,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            try:
                result.configs = self._described(asked, listener)
            except LogError as error:
                result.error_code, result.error_message = error.code, str(error)
            for each in result.configs:
                if not request.include_synonyms:
                    each.synonyms = []
                if not request.include_documentation:
                    each.documentation = None
            results.append(result)
        return DescribeConfigsResponse(results=results)

    def _described(
        self, asked: DescribeConfigsResource, listener: Listener
    ) -> list[DescribeConfigsResourceResult]:
        resource = self._resource(asked.resource_type, asked.resource_name)
        described = [
            _result(setting, resource.layers(name)) for name, setting in resource.settings.items()
        ]
        if asked.resource_type == BROKER_RESOURCE and asked.resource_name == ALL_BROKERS:
            described = [each for each in described if each.name in resource.own]
        elif asked.resource_type == BROKER_RESOURCE:
            fixed = self._fixed(listener)
            names = {each.name for each in fixed}
            described = [*(each for each in described if each.name not in names), *fixed]
        keys = asked.configuration_keys
        return [each for each in described if not keys or each.name in keys]

    def _fixed(self, listener: Listener) -> list[DescribeConfigsResourceResult]:
        """What clients look for in a broker's settings and nobody sets."""
        host, port = listener
        given = self._directory.config.security
        values = {
            "broker.id": (str(self._directory.node_id), "The older name of node.id."),
            ADVERTISED: (
                given.advertised_listeners or given.listeners or f"PLAINTEXT://{host}:{port}",
                "Where this client reaches the broker.",
            ),
            "default.replication.factor": ("1", "Copies of a partition: this broker is alone."),
        }
        return [
            DescribeConfigsResourceResult(
                name=name,
                value=value,
                read_only=True,
                config_source=Source.STATIC,
                config_type=Kind.STRING,
                documentation=documentation,
                synonyms=[DescribeConfigsSynonym(name=name, value=value, source=Source.STATIC)],
            )
            for name, (value, documentation) in values.items()
        ]

    def inherited_source(self, name: str) -> Source:
        """Where a topic that says nothing about a setting has its value from."""
        return Source(self._layers(TOPIC_SETTINGS[name].broker_name)[0].source)

    # ---- altering ----

    def alter(self, request: IncrementalAlterConfigsRequest) -> IncrementalAlterConfigsResponse:
        """Make changes; those to one resource are made together or not at all."""
        asked = [
            (
                (each.resource_type, each.resource_name),
                [(config.name, config.config_operation, config.value) for config in each.configs],
            )
            for each in request.resources
        ]
        responses = self._alter_all(asked, replacing=False, validate_only=request.validate_only)
        return IncrementalAlterConfigsResponse(responses=responses)

    def replace(self, request: AlterConfigsRequest) -> AlterConfigsResponse:
        """Give resources these settings, and their defaults to all others."""
        asked = [
            (
                (each.resource_type, each.resource_name),
                [(config.name, int(Operation.SET), config.value) for config in each.configs],
            )
            for each in request.resources
        ]
        responses = self._alter_all(asked, replacing=True, validate_only=request.validate_only)
        return AlterConfigsResponse(responses=responses)

    def _alter_all(
        self,
        asked: Sequence[tuple[tuple[int, str], list[tuple[str, int, str | None]]]],
        *,
        replacing: bool,
        validate_only: bool,
    ) -> list[AlterConfigsResourceResponse]:
        counts = Counter(place for place, _ in asked)
        responses = []
        for place, changes in asked:
            kind, name = place
            response = AlterConfigsResourceResponse(
                error_message=None, resource_type=kind, resource_name=name
            )
            try:
                _refuse_repeated(f"resource {name!r}", counts[place])
                resource = self._resource(kind, name)
                after = _after(resource, changes, replacing=replacing)
                if not validate_only:
                    resource.keep(after)
            except ConfigError as error:
                response.error_code, response.error_message = ErrorCode.INVALID_CONFIG, str(error)
            except LogError as error:
                response.error_code, response.error_message = error.code, str(error)
            except StreamlogError as error:
                response.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                response.error_message = str(error)
            responses.append(response)
        return responses

    # ---- resources ----

    def _resource(self, kind: int, name: str) -> _Resource:
        node_id = str(self._directory.node_id)
        if kind == TOPIC_RESOURCE:
            return self._topic(name)
        if kind == BROKER_RESOURCE and name == ALL_BROKERS:
            return self._all_brokers()
        if kind == BROKER_RESOURCE and name == node_id:
            return self._broker()
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"no settings of {name!r} (type {kind}): there are topics (type 2) and broker"
            f" {node_id} (type 4; without a name: all brokers)",
        )

    def _topic(self, name: str) -> _Resource:
        directory = self._directory
        state = directory.topics.get(name)
        if state is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")

        def layers(setting: str) -> list[DescribeConfigsSynonym]:
            inherited = self._layers(TOPIC_SETTINGS[setting].broker_name)
            if setting not in state.configs:
                return inherited
            own = state.configs[setting]
            return [_synonym(setting, own, Source.TOPIC), *inherited]

        return _Resource(
            settings=TOPIC_SETTINGS,
            own=state.configs,
            effective=state.config.described(),
            layers=layers,
            check=directory.config.topic.overridden,
            keep=lambda own: directory.alter_topic(name, own),
        )

    def _broker(self) -> _Resource:
        directory = self._directory
        return _Resource(
            settings=BROKER_SETTINGS,
            own=directory.altered.node,
            effective=directory.config.described(),
            layers=self._layers,
            check=lambda own: self._checked(replace(directory.altered, node=own)),
            keep=lambda own: self._keep(replace(directory.altered, node=own)),
        )

    def _all_brokers(self) -> _Resource:
        directory = self._directory
        default = directory.altered.default
        return _Resource(
            settings=BROKER_SETTINGS,
            own=default,
            effective=directory.given_config.overridden(default).described(),
            layers=lambda name: [
                each for each in self._layers(name) if each.source != Source.BROKER
            ],
            check=lambda own: self._checked(replace(directory.altered, default=own)),
            keep=lambda own: self._keep(replace(directory.altered, default=own)),
        )

    def _checked(self, settings: AlteredSettings) -> None:
        config = effective(self._directory.given_config, settings)
        for topic in self._directory.topics.values():
            config.topic.overridden(topic.configs)

    def _keep(self, settings: AlteredSettings) -> None:
        self._directory.alter_broker(settings)
        self._on_altered()

    def _layers(self, name: str) -> list[DescribeConfigsSynonym]:
        """Where a setting of the broker has a value."""
        setting = BROKER_SETTINGS[name]
        given = self._directory.given_config.described()[name]
        default = setting.text(setting.default)
        found = [
            _synonym(name, texts[name], source)
            for source, texts in (
                (Source.BROKER, self._directory.altered.node),
                (Source.ALL_BROKERS, self._directory.altered.default),
            )
            if name in texts
        ]
        if given != default:
            found.append(_synonym(name, given, Source.STATIC))
        found.append(_synonym(name, default, Source.DEFAULT))
        for each in found if setting.is_secret else ():
            each.value = None
        return found


def _after(
    resource: _Resource, changes: Iterable[tuple[str, int, str | None]], *, replacing: bool
) -> dict[str, str]:
    """The resource's own settings as they shall be."""
    named = [(name, _operation(operation), text) for name, operation, text in changes]
    for name, count in Counter(name for name, _, _ in named).items():
        _refuse_repeated(name, count)
    if replacing:
        # Whoever reads all, changes one and writes all back writes what can't be changed, too.
        named = [each for each in named if not _is_fixed_as_it_is(resource, each)]
    own: Mapping[str, str] = {} if replacing else resource.own
    after = altered(resource.settings, own, resource.effective, named)
    resource.check(after)
    return after


def _is_fixed_as_it_is(resource: _Resource, change: Change) -> bool:
    name, _, text = change
    setting = resource.settings.get(name)
    if setting is None or setting.is_dynamic:
        return False
    # Of a secret nothing is shown, and what is shown of this depends on who asks.
    is_unlike = (setting.is_secret and text is None) or name == ADVERTISED
    return is_unlike or resource.effective[name] == text


def _operation(number: int) -> Operation:
    try:
        return Operation(number)
    except ValueError:
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"operation {number} is none of set (0), delete (1), append (2), subtract (3)",
        ) from None


def _refuse_repeated(what: str, count: int) -> None:
    if count > 1:
        raise error_for(ErrorCode.INVALID_REQUEST, f"{what} is {count} times in")


def _result(
    setting: Setting, layers: list[DescribeConfigsSynonym]
) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=setting.name,
        value=layers[0].value,
        read_only=not setting.is_dynamic,
        is_sensitive=setting.is_secret,
        config_source=layers[0].source,
        config_type=setting.kind,
        documentation=setting.documentation,
        synonyms=layers,
    )


def _synonym(name: str, value: str, source: Source) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)
