"""ConfigRequests: DescribeConfigs, ListConfigResources, and the levels of this broker's loggers.

Settings come from the metadata that this broker knows, and from its own configuration. A response
lists each place that gives a setting a value, the strongest first.

`LoggerLevels` shows the loggers of this process as a config resource, BROKER_LOGGER (KIP-412).
Levels are changed while the broker runs, and lost when it stops. The names are Kafka's: TRACE is
Python's DEBUG, and FATAL its CRITICAL.

Not done here: changes to settings, which the controller makes. Only levels of loggers are changed
here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import msgspec

from streamlog.broker.config.broker import BROKER_SETTINGS, TOPIC_SETTINGS, BrokerConfig
from streamlog.broker.config.resources import (
    BROKER_LOGGER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    RESOURCE_TABLES,
    effective,
    resource_settings,
)
from streamlog.broker.config.settings import Setting, SettingKind, SettingOperation, SettingSource
from streamlog.broker.future_responses import Answer, map_response
from streamlog.broker.handlers import Handler, Handlers, entry
from streamlog.errors import LogError, UnknownTopicOrPartition
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.topics_and_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
    ListedConfigResource,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.config.connections import AdvertisedEndpoint
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.security.principals import RequestContext
    from streamlog.broker.storage.log_directory import LogDirectory


ROOT: Final = "root"
PACKAGE: Final = "streamlog"
LEVELS: Final = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
NAMES: Final = {number: name for name, number in LEVELS.items()}


class LoggerLevels:
    """The levels of the loggers of this process."""

    def described(self) -> list[DescribeConfigsResourceResult]:
        """Return the effective level of each logger."""
        return [
            DescribeConfigsResourceResult(
                name=name,
                value=_level_name(_logger(name).getEffectiveLevel()),
                config_source=SettingSource.BROKER_LOGGER,
                config_type=SettingKind.STRING,
                documentation=None,
            )
            for name in (ROOT, *_names())
        ]

    def alter(self, changes: Sequence[tuple[str, int, str | None]], *, validate_only: bool) -> None:
        """Set levels; DELETE makes a logger use the level of its parent.

        All changes are checked before the first one is made.

        Raises:
            LogError: INVALID_REQUEST, an operation is neither SET nor DELETE, or ROOT would be
                deleted; INVALID_CONFIG, there is no such logger or level.
        """
        wanted = {name: _wanted(name, operation, value) for name, operation, value in changes}
        if not validate_only:
            for name, level in wanted.items():
                _logger(name).setLevel(level)


def _wanted(name: str, operation: int, value: str | None) -> int:
    known = (ROOT, *_names())
    if name not in known:
        near = get_close_matches(name, known, n=2)
        hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise error_for(
            ErrorCode.INVALID_CONFIG,
            f"unknown logger {name!r}:{hint} DescribeConfigs of this resource lists the loggers",
        )
    if operation == SettingOperation.DELETE:
        if name == ROOT:
            raise _invalid(
                "the root logger must have a level: set another level instead of deleting it"
            )
        return logging.NOTSET
    if operation != SettingOperation.SET:
        raise _invalid(f"the level of logger {name!r} can only be set or deleted")
    if value not in LEVELS:
        raise error_for(
            ErrorCode.INVALID_CONFIG,
            f"unknown level {value!r} of logger {name!r}: use one of {', '.join(LEVELS)}",
        )
    return LEVELS[value]


def _names() -> list[str]:
    """Return the names of the package's loggers, including the package itself."""
    known = {each for each in logging.root.manager.loggerDict if _is_own(each)}
    return sorted(known | {PACKAGE})


def _is_own(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _logger(name: str) -> logging.Logger:
    return logging.getLogger(None if name == ROOT else name)


def _level_name(level: int) -> str:
    # Python's levels are any numbers: one between two of Kafka's gets the lower name. DEBUG comes
    # after TRACE in the table, so the number that both share is shown as DEBUG.
    at_most = [number for number in NAMES if number <= level]
    return NAMES[max(at_most)] if at_most else "TRACE"


def _invalid(detail: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, detail)


TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
RESOURCE_TYPES = frozenset(
    {TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, *RESOURCE_TABLES}
)
"""The types of resources that a client may list."""
RESOURCE_TYPES_VERSION = 1
"""The first ListConfigResources version in which a client names types (KIP-1142)."""
ADVERTISED = "advertised.listeners"
ALL_BROKERS = ""
"""The name of the settings that hold for every broker of the cluster."""

Change = tuple[str, SettingOperation, str | None]


class _Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource: its settings, their values, and where the values come from."""

    settings: Mapping[str, Setting]
    effective: Mapping[str, str]
    layers: Callable[[str], list[DescribeConfigsSynonym]]
    """Returns the values of a setting with their sources, the strongest first."""


class ConfigRequests:
    """Handles requests about settings, and changes levels of this broker's loggers."""

    def __init__(self, directory: LogDirectory, metadata: ClusterMetadata) -> None:
        self._directory = directory
        self._metadata = metadata
        self._loggers = LoggerLevels()
        self._given_texts: tuple[BrokerConfig, Mapping[str, str]] | None = None

    def handlers(self, reached: Callable[[RequestContext], AdvertisedEndpoint]) -> Handlers:
        """Return the handler of each request type.

        `reached` returns the endpoint over which a client has connected to this broker.
        """
        return dict(
            [
                entry(
                    DescribeConfigsRequest,
                    lambda request, at: self.describe(request, reached(at)),
                ),
                entry(
                    ListConfigResourcesRequest,
                    lambda request, at: self.resources(request, at.version),
                ),
            ]
        )

    def resources(
        self, request: ListConfigResourcesRequest, version: int
    ) -> ListConfigResourcesResponse:
        """List the resources with settings; groups and client metrics only if any are set.

        Version 0 lists client metrics only (KIP-714).
        """
        if not set(request.resource_types) <= RESOURCE_TYPES:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        types = set(request.resource_types) or RESOURCE_TYPES
        if version < RESOURCE_TYPES_VERSION:
            types = frozenset({CLIENT_METRICS_RESOURCE})
        found: list[tuple[int, str]] = []
        if TOPIC_RESOURCE in types:
            found += ((TOPIC_RESOURCE, name) for name in self._metadata.topic_names())
        if BROKER_RESOURCE in types:
            found.append((BROKER_RESOURCE, str(self._directory.node_id)))
        if BROKER_LOGGER_RESOURCE in types:
            found.append((BROKER_LOGGER_RESOURCE, str(self._directory.node_id)))
        for kind in sorted(RESOURCE_TABLES):
            if kind in types:
                found += ((kind, name) for name in self._metadata.configured(kind))
        return ListConfigResourcesResponse(
            config_resources=[
                ListedConfigResource(resource_type=kind, resource_name=name) for kind, name in found
            ]
        )

    # ---- levels of loggers ----

    def before(
        self, forward: Handler[IncrementalAlterConfigsRequest, Message]
    ) -> Handler[IncrementalAlterConfigsRequest, Message]:
        """Return a handler that changes loggers here and passes all other changes to `forward`."""

        def alter(request: IncrementalAlterConfigsRequest, at: RequestContext) -> Answer:
            loggers: list[AlterConfigsResource] = []
            others: list[AlterConfigsResource] = []
            for each in request.resources:
                is_own = each.resource_type == BROKER_LOGGER_RESOURCE
                (loggers if is_own else others).append(each)
            if not loggers:
                return forward(request, at)
            own = [
                self._alter_loggers(each, validate_only=request.validate_only) for each in loggers
            ]
            if not others:
                return IncrementalAlterConfigsResponse(responses=own)
            # The controller gets the rest only: it knows nothing of this broker's loggers.
            request.resources = others
            return map_response(forward(request, at), lambda response: _with_loggers(response, own))

        return alter

    def _alter_loggers(
        self, asked: AlterConfigsResource, *, validate_only: bool
    ) -> AlterConfigsResourceResponse:
        answer = AlterConfigsResourceResponse(
            resource_type=asked.resource_type, resource_name=asked.resource_name
        )
        changes = [(each.name, each.config_operation, each.value) for each in asked.configs]
        try:
            self._check_own(asked.resource_name)
            self._loggers.alter(changes, validate_only=validate_only)
        except LogError as error:
            answer.error_code, answer.error_message = error.code, str(error)
        return answer

    # ---- describing ----

    def describe(
        self, request: DescribeConfigsRequest, reached: AdvertisedEndpoint
    ) -> DescribeConfigsResponse:
        """Return the settings of the resources that the request names."""
        results = []
        for asked in request.resources:
            result = DescribeConfigsResult(
                error_message=None,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            try:
                result.configs = self._described(asked, reached)
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
        self, asked: DescribeConfigsResource, reached: AdvertisedEndpoint
    ) -> list[DescribeConfigsResourceResult]:
        keys = asked.configuration_keys
        if asked.resource_type == BROKER_LOGGER_RESOURCE:
            self._check_own(asked.resource_name)
            return [each for each in self._loggers.described() if not keys or each.name in keys]
        resource = self._resource(asked.resource_type, asked.resource_name)
        described = [
            _result(setting, resource.layers(name)) for name, setting in resource.settings.items()
        ]
        if asked.resource_type == BROKER_RESOURCE and asked.resource_name == ALL_BROKERS:
            # Of the settings for all brokers, only those that were altered, as in Kafka.
            own = self._metadata.config(BROKER_RESOURCE, ALL_BROKERS)
            described = [each for each in described if each.name in own]
        elif asked.resource_type == BROKER_RESOURCE:
            fixed = self._fixed(reached)
            names = {each.name for each in fixed}
            described = [*(each for each in described if each.name not in names), *fixed]
        return [each for each in described if not keys or each.name in keys]

    def _fixed(self, reached: AdvertisedEndpoint) -> list[DescribeConfigsResourceResult]:
        """Return read-only settings of the broker that clients look up."""
        given = self._directory.config.security
        values = {
            "broker.id": (str(self._directory.node_id), "The older name of node.id."),
            ADVERTISED: (
                given.advertised_listeners
                or given.listeners
                or f"{reached.listener}://{reached.host}:{reached.port}",
                "The address at which this client reaches the broker.",
            ),
        }
        return [
            DescribeConfigsResourceResult(
                name=name,
                value=value,
                read_only=True,
                config_source=SettingSource.STATIC,
                config_type=SettingKind.STRING,
                documentation=documentation,
                synonyms=[
                    DescribeConfigsSynonym(name=name, value=value, source=SettingSource.STATIC)
                ],
            )
            for name, (value, documentation) in values.items()
        ]

    # ---- resources ----

    def _resource(self, kind: int, name: str) -> _Resource:
        node_id = str(self._directory.node_id)
        if kind == TOPIC_RESOURCE:
            return self._topic(name)
        if kind in RESOURCE_TABLES:
            return self._named(kind, name)
        if kind == BROKER_RESOURCE and name == ALL_BROKERS:
            return self._all_brokers()
        if kind == BROKER_RESOURCE and name == node_id:
            return self._broker()
        raise error_for(
            ErrorCode.INVALID_REQUEST,
            f"unknown resource {name!r} of type {kind}: use a topic (type 2), a group (32),"
            f" client metrics (16), broker {node_id} (4; without a name: all brokers) or its"
            " loggers (8)",
        )

    def _topic(self, name: str) -> _Resource:
        if self._metadata.topic(name) is None:
            raise UnknownTopicOrPartition(f"there is no topic {name!r}")

        configs = self._metadata.config(TOPIC_RESOURCE, name)

        def layers(setting: str) -> list[DescribeConfigsSynonym]:
            inherited = self._inherited(TOPIC_SETTINGS[setting])
            if setting not in configs:
                return inherited
            return [_synonym(setting, configs[setting], SettingSource.TOPIC), *inherited]

        return _Resource(
            settings=TOPIC_SETTINGS,
            effective=self._directory.config.topic.override(configs).as_texts(),
            layers=layers,
        )

    def _named(self, kind: int, name: str) -> _Resource:
        """Return a group, or a client metrics subscription, whether it exists or not."""
        own = self._metadata.config(kind, name)
        source = SettingSource.GROUP if kind == GROUP_RESOURCE else SettingSource.CLIENT_METRICS
        settings = resource_settings(kind)

        def layers(setting: str) -> list[DescribeConfigsSynonym]:
            inherited = self._inherited(settings[setting])
            given = [own[setting]] if setting in own else []
            return [*(_synonym(setting, value, source) for value in given), *inherited]

        return _Resource(
            settings=settings,
            effective=effective(kind, own, self._directory.config.as_texts()),
            layers=layers,
        )

    def _inherited(self, setting: Setting) -> list[DescribeConfigsSynonym]:
        """Return where a resource without an own value gets it: the broker, or the default."""
        if setting.broker_name:
            return self._layers(setting.broker_name)
        return [_synonym(setting.name, setting.text(setting.default), SettingSource.DEFAULT)]

    def _check_own(self, name: str) -> None:
        """Raise LogError unless `name` is this broker's id: loggers are those of one process."""
        if name != str(self._directory.node_id):
            raise error_for(
                ErrorCode.INVALID_REQUEST,
                f"the loggers of broker {name!r} are not here: send the request to that"
                f" broker; this is broker {self._directory.node_id}",
            )

    def _broker(self) -> _Resource:
        return _Resource(
            settings=BROKER_SETTINGS,
            effective=self._directory.config.as_texts(),
            layers=self._layers,
        )

    def _all_brokers(self) -> _Resource:
        directory = self._directory
        default = directory.altered.default
        return _Resource(
            settings=BROKER_SETTINGS,
            effective=directory.given_config.override(default).as_texts(),
            # Without those of this broker, which are not the other brokers'.
            layers=lambda name: [
                each for each in self._layers(name) if each.source != SettingSource.BROKER
            ],
        )

    def _given(self) -> Mapping[str, str]:
        """Return the settings that the broker was started with, as text."""
        config = self._directory.given_config
        # Once, and not for each of a topic's settings: who describes all topics would wait for it.
        if self._given_texts is None or self._given_texts[0] is not config:
            self._given_texts = config, config.as_texts()
        return self._given_texts[1]

    def _layers(self, name: str) -> list[DescribeConfigsSynonym]:
        """Return the values of a broker setting, the strongest first, as in KIP-226."""
        setting = BROKER_SETTINGS[name]
        given = self._given()[name]
        default = setting.text(setting.default)
        found = [
            _synonym(name, texts[name], source)
            for source, texts in (
                (SettingSource.BROKER, self._directory.altered.node),
                (SettingSource.ALL_BROKERS, self._directory.altered.default),
            )
            if name in texts
        ]
        if given != default:
            found.append(_synonym(name, given, SettingSource.STATIC))
        found.append(_synonym(name, default, SettingSource.DEFAULT))
        # The sources stay: they say whether a secret is set, and where.
        for each in found if setting.is_secret else ():
            each.value = None
        return found


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


def _with_loggers(response: Message, own: list[AlterConfigsResourceResponse]) -> Message:
    if isinstance(response, IncrementalAlterConfigsResponse):
        response.responses = [*response.responses, *own]
    return response


def _synonym(name: str, value: str, source: SettingSource) -> DescribeConfigsSynonym:
    return DescribeConfigsSynonym(name=name, value=value, source=source)
