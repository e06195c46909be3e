"""Configured connectors: a Connect configuration as the declaration that an app would make.

Converters become the serdes of topics, transforms a transform, and `errors.*` an error policy.

Rule: values only. Nothing here connects, and secrets stay references.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import Any, Final, Literal, TypedDict, cast

import msgspec

from streamlog.connect.common_settings import PREFIXES, SinkConfig, SourceConfig, common_model
from streamlog.connect.connector_settings import (
    SettingsRefused,
    definitions,
    read_settings,
    settings_of,
    unknown_settings,
    validated,
)
from streamlog.connect.converters.converter import (
    ByteArrayConverter,
    unknown_converter_settings,
)
from streamlog.connect.declared_connectors import ErrorLog, SinkConnector, SourceConnector
from streamlog.connect.herding.configs import JAVA_TASK, TASK_PARTS
from streamlog.connect.herding.herder import ConnectorType
from streamlog.connect.java_connectors import JavaConnector, LeftOffsets
from streamlog.connect.names import Plugin, find_plugin, plugin_names
from streamlog.connect.retries import RecordRetries
from streamlog.connect.sink import Sink
from streamlog.connect.source import Source, SourceOffset, SourcePartition, Transform
from streamlog.connect.transforms.transform_chain import TransformChain, chain_of
from streamlog.connect_service.converter_serdes import (
    AnyTopicConverter,
    ReadTransform,
    WriteTransform,
    open_converter,
    resolved,
    topic_spec,
)
from streamlog.durations import duration_ms
from streamlog.errors import ConfigError
from streamlog.nodes.policies import ErrorPolicy, on_error
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.serdes.erased_types import JsonValue
from streamlog.serdes.plain import BytesSerde

CLASS: Final = "connector.class"
EXECUTING: Final = frozenset({"Exec"})
"""Connectors that run commands of the machine."""
ALLOW_EXEC: Final = "allow.exec"
"""Ours: the worker's setting that allows them."""
TOPICS: Final = ("topics", "topics.regex")
NO_TOPICS: Final = "Must configure one of topics or topics.regex"
SIDES: Final[tuple[Literal["key", "value"], ...]] = ("key", "value")
"""The converted sides of a record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredSource(SourceConnector):
    """A source whose records may name any topic, as transforms and tables do."""

    key: AnyTopicConverter
    value: AnyTopicConverter
    topic: str
    is_verbatim: bool = False
    """Whether nothing changes the bytes of a raw Read on their way to `topic`."""

    java: JavaConnector | None = None
    """The settings of a Java class, if the configuration names one."""

    def left_offset(self, part: SourcePartition, left: LeftOffsets) -> SourceOffset | None:
        """Return the offset that a Java class has left for a part."""
        return None if self.java is None else self.java.left_offset(part, left)

    @property
    def needs_schemas(self) -> bool:
        """Whether transforms and converters get the schemas of rows: always."""
        return True

    @property
    def keeps_raw(self) -> bool:
        """Whether the bytes of a raw Read are written as they are."""
        return self.is_verbatim

    def topic_of(self, own_name: str) -> TopicSpec:
        """Return the topic of a record.

        Raises:
            ConfigError: the record names none, and neither does the configuration.
        """
        # Whatever the record says by now: transforms may have named another topic.
        name = own_name or self.topic
        if not name:
            raise ConfigError(
                f"source {self.name!r} reads records for no topic of their own: set topic=NAME"
            )
        return topic_spec(check_name("a topic", name), self.key, self.value)


def configured(
    name: str,
    settings: Mapping[str, str],
    worker: Mapping[str, str],
    resolve: Callable[[str], str] | None = None,
) -> SourceConnector | SinkConnector:
    """Return the connector that a configuration describes.

    Args:
        name: its name.
        settings: its configuration, with secrets as references.
        worker: the worker's settings, which have the converters that the configuration lacks.
        resolve: replaces the references to secrets in a text; None leaves them as they are.

    Raises:
        ConfigError: a setting is wrong; the message names it.
    """
    plugin = find_plugin(settings.get(CLASS, ""))
    # A client of the REST API could run any command of the machine otherwise.
    if plugin.name in EXECUTING and worker.get(ALLOW_EXEC) != "true":
        raise ConfigError(
            f"{CLASS}={plugin.name} runs commands: start `streamlog connect` with --allow-exec"
        )
    common = read_settings(common_model(plugin.kind), {"name": name, **settings})
    given = read_settings(plugin.settings, settings)
    java = given if isinstance(given, JavaConnector) else None
    made = given if java is None else java.connector()
    # Read here as well as at the start of a task, so that a typing error is refused at once.
    chain = chain_of(settings)
    key, value = (open_converter(settings, worker, side, resolve) for side in SIDES)
    policy = _policy(name, common)
    if isinstance(common, SinkConfig):
        is_verbatim = not chain.steps and _keeps_bytes(made, key, value)
        return SinkConnector(
            name=name,
            sink=resolved(cast("Sink[Any, Any]", made), resolve),
            **_topics(name, common, _specify(key, value, is_verbatim=is_verbatim)),
            tasks=common.tasks_max,
            transforms=_write_transforms(None if is_verbatim else chain, java),
            policy=policy,
            has_context_headers=common.errors_deadletterqueue_context_headers_enable,
            retries=_retries(common),
            error_log=_error_log(common),
        )
    _check_guarantee(plugin, common)
    topic = common.topic or ""
    return ConfiguredSource(
        name=name,
        source=resolved(cast("Source[Any, Any]", made), resolve),
        topics={"": topic_spec(topic or name, key, value)},
        tasks=common.tasks_max,
        discover_every_ms=max(duration_ms(common.discover_every), 1),
        transforms=(ReadTransform(chain, topic, key, value, None if java is None else java.adapt),),
        policy=policy,
        has_context_headers=common.errors_deadletterqueue_context_headers_enable,
        retries=_retries(common),
        error_log=_error_log(common),
        key=key,
        value=value,
        topic=topic,
        # Without transforms a source of raw lines is carried as columns, at a third of the cost.
        is_verbatim=bool(topic) and not chain.steps,
        java=java,
    )


class _Topics(TypedDict):
    """The topics of a sink, by the names of `SinkConnector`."""

    topics: list[TopicSpec]
    pattern: re.Pattern[str] | None
    like: TopicSpec | None


def _write_transforms(
    chain: TransformChain | None, java: JavaConnector | None
) -> tuple[Transform, ...]:
    """Return what changes the records of a sink; without a chain, their values are plain."""
    found: list[Transform] = [] if chain is None else [WriteTransform(chain)]
    return (*found, *([] if java is None else [java.adapt]))


def _keeps_bytes(sink: object, *converters: AnyTopicConverter) -> bool:
    takes_bytes = isinstance(sink, Sink) and sink.takes_bytes
    return takes_bytes and all(isinstance(each, ByteArrayConverter) for each in converters)


def _specify(
    key: AnyTopicConverter, value: AnyTopicConverter, *, is_verbatim: bool
) -> Callable[[str], TopicSpec]:
    """Return what makes a topic of a name."""
    if is_verbatim:
        return lambda topic: TopicSpec(topic, BytesSerde(), BytesSerde())
    return partial(topic_spec, key=key, value=value)


def _topics(name: str, common: SinkConfig, specify: Callable[[str], TopicSpec]) -> _Topics:
    """Return the topics that a sink carries, by their names or by a pattern."""
    if (pattern := _pattern(common)) is not None:
        return {"topics": [], "pattern": pattern, "like": specify(name)}
    if not common.topics:
        raise ConfigError("topics: names the topics that the sink carries; it is missing")
    named = [specify(check_name("a topic", each)) for each in common.topics]
    return {"topics": named, "pattern": None, "like": None}


def _pattern(common: SinkConfig) -> re.Pattern[str] | None:
    """Return the pattern of a sink's topics; None if it names them."""
    if not common.topics_regex:
        return None
    if common.topics:
        raise ConfigError("topics and topics.regex are both set: a sink has one of them")
    try:
        return re.compile(common.topics_regex)
    except re.error as error:
        raise ConfigError(
            f"topics.regex={common.topics_regex!r} is no regular expression of Python: {error}"
        ) from error


class InstalledPlugins:
    """The connectors that are installed, as the herder asks for them; a `Plugins`."""

    def __init__(self, worker: Mapping[str, str]) -> None:
        """`worker` has the worker's settings."""
        self._worker = worker

    def kind(self, settings: Mapping[str, str]) -> ConnectorType:
        """Return whether settings are those of a source or a sink."""
        try:
            return find_plugin(settings.get(CLASS, "")).kind
        except ConfigError:
            return "unknown"

    def faults(self, settings: Mapping[str, str]) -> list[str]:
        """Return a sentence for each setting that is wrong."""
        try:
            configured(settings.get("name", "connector"), settings, self._worker)
        except SettingsRefused as error:
            return [str(fault) for fault in error.faults]
        except ConfigError as error:
            return [str(error)]
        return []


def validation(
    name: str, settings: Mapping[str, str], worker: Mapping[str, str]
) -> dict[str, JsonValue]:
    """Return what `PUT /connector-plugins/NAME/config/validate` answers.

    Raises:
        ConfigError: there is no such connector.
    """
    plugin = find_plugin(name)
    common = common_model(plugin.kind)
    configs = [
        *validated(common, settings, group="Common"),
        *validated(plugin.settings, settings, group=plugin.name),
    ]
    # Kafka Connect passes them over; here a misspelt setting must not fall back to its default.
    known = [each.name for each in (*settings_of(common), *settings_of(plugin.settings))]
    configs += [_unknown(each, known) for each in _unknown_names(plugin, settings)]
    if plugin.kind == "sink" and not any(settings.get(each, "").strip() for each in TOPICS):
        configs = [_without_topics(each) for each in configs]
    # Only once each setting is right by itself can transforms and the whole be looked at.
    own = count_errors(configs)
    whole = InstalledPlugins(worker).faults({CLASS: name, **settings}) if not own else []
    configs += [_fault(each) for each in whole]
    return {
        "name": plugin.name,
        "error_count": count_errors(configs),
        "groups": ["Common", plugin.name],
        "configs": configs,
    }


def plugin_settings(name: str) -> list[dict[str, JsonValue]]:
    """Return what `GET /connector-plugins/NAME/config` answers.

    Raises:
        ConfigError: there is no such connector.
    """
    plugin = find_plugin(name)
    common = definitions(common_model(plugin.kind), group="Common")
    return [*common, *definitions(plugin.settings, group=plugin.name)]


def strange_settings(settings: Mapping[str, str]) -> list[str]:
    """Return the names in a configuration that nothing reads, for a warning."""
    try:
        names = _unknown_names(find_plugin(settings.get(CLASS, "")), settings)
    except ConfigError:
        return []
    # The settings of a task have its parts as well, which the herder wrote, and those that a worker
    # of Kafka Connect has left have the class of the task in Java.
    return sorted({*names} - {TASK_PARTS, JAVA_TASK})


def _unknown_names(plugin: Plugin, settings: Mapping[str, str]) -> list[str]:
    names = unknown_settings((common_model(plugin.kind), plugin.settings), settings, PREFIXES)
    return names + [name for side in SIDES for name in unknown_converter_settings(settings, side)]


def plugins() -> list[Plugin]:
    """Return the connectors that are installed and can be imported."""
    found = []
    for name in plugin_names():
        try:
            found.append(find_plugin(name))
        except ConfigError:
            # Its library is missing: it can't be run, so it is not offered.
            continue
    return found


def count_errors(configs: Sequence[JsonValue]) -> int:
    """Return the number of errors among the answers about settings."""
    return sum(len(msgspec.convert(each, _Answered).value.errors) for each in configs)


class _Errors(msgspec.Struct):
    errors: list[str]


class _Answered(msgspec.Struct):
    value: _Errors


def _without_topics(answered: JsonValue) -> JsonValue:
    """Return the answer about a setting of a sink that has no topics."""
    if not isinstance(answered, dict) or not isinstance(answered["value"], dict):
        return answered
    value = answered["value"]
    if value["name"] not in TOPICS:
        return answered
    return {**answered, "value": {**value, "errors": [NO_TOPICS]}}


def _unknown(name: str, known: Sequence[str]) -> JsonValue:
    near = get_close_matches(name, known, n=1)
    meant = f"; did you mean {near[0]}?" if near else ""
    return _answered(name, f"{name} is no setting of this connector{meant}")


def _fault(why: str) -> JsonValue:
    """Return a fault of a transform, a converter or the whole as that of the class."""
    return _answered(CLASS, why)


def _answered(name: str, why: str) -> JsonValue:
    definition: dict[str, JsonValue] = {
        "name": name, "type": "STRING", "required": False, "default_value": None,
        "importance": "LOW", "documentation": "", "group": None, "width": "NONE",
        "display_name": name, "dependents": [], "order_in_group": -1,
    }  # fmt: skip
    value: dict[str, JsonValue] = {
        "name": name, "value": None, "recommended_values": [], "errors": [why], "visible": True,
    }  # fmt: skip
    return {"definition": definition, "value": value}


def _policy(name: str, common: SourceConfig | SinkConfig) -> ErrorPolicy:
    if common.errors_tolerance == "none":
        return on_error.FAIL
    topic = common.errors_deadletterqueue_topic_name
    # What is logged is the matter of `errors.log.enable`, whichever policy there is.
    last = on_error.dlq(topic) if topic else on_error.skip(log=False)
    return last.named(name)


def _retries(common: SourceConfig | SinkConfig) -> RecordRetries:
    return RecordRetries(common.errors_retry_timeout, common.errors_retry_delay_max_ms)


def _error_log(common: SourceConfig | SinkConfig) -> ErrorLog:
    if not common.errors_log_enable:
        return "off"
    return "records" if common.errors_log_include_messages else "errors"


def _check_guarantee(plugin: Plugin, common: SourceConfig | SinkConfig) -> None:
    # A source that promises less would run as well, and its operator rely on what is not so.
    required = isinstance(common, SourceConfig) and common.exactly_once_support == "required"
    promised = getattr(plugin.connector, "guarantee", "at_least_once")
    if required and promised != "exactly_once":
        raise ConfigError(
            f"exactly.once.support=required: {plugin.name} promises {promised.replace('_', ' ')}"
        )
