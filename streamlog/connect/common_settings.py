"""Common settings: what every connector's configuration may have, by Kafka Connect's names.

The classes are models as a connector's own settings are, so one code reads, validates and documents
both. What a name stands for here, where it differs from Kafka Connect, is in its description.

Rule: every setting of Kafka Connect 4.4's ConnectorConfig, SourceConnectorConfig and
SinkConnectorConfig is here, whether or not it has an effect, so a pasted configuration is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec

from streamlog.connect.setting_types import INT32_MAX, INT64_MAX
from streamlog.durations import Dur

Count = Annotated[int, msgspec.Meta(ge=1, le=INT32_MAX)]
LongCount = Annotated[int, msgspec.Meta(ge=1, le=INT64_MAX)]
"""A number of 1 or more."""
Milliseconds = Annotated[int, msgspec.Meta(ge=-1)]
"""A time in milliseconds; -1 for no limit, where that is allowed."""

PREFIXES: Final = (
    "transforms.",
    "predicates.",
    "key.converter.",
    "value.converter.",
    "header.converter.",
    "producer.override.",
    "consumer.override.",
    "admin.override.",
    "topic.creation.",
)
"""Beginnings of settings that belong to a transform, a converter or a client."""

WITHOUT_EFFECT: Final = (
    "errors.deadletterqueue.topic.replication.factor",
    "header.converter",
    "producer.override.",
    "consumer.override.",
    "admin.override.",
    "topic.creation.",
    "offsets.storage.topic",
)
"""Settings, or their beginnings, that would change something in Kafka Connect and nothing here."""


def without_effect(settings: Mapping[str, str]) -> list[str]:
    """Return the settings of a configuration that have no effect here, for a warning."""
    return sorted(name for name in settings if name.startswith(WITHOUT_EFFECT))


class ConnectorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of every connector.

    Attributes:
        name: the name of the connector, which identifies its offsets.
        connector_class: the connector by its name, or by the Java class that it stands for.
        connector_plugin_version: accepted; the version that is installed runs.
        tasks_max: the largest number of tasks.
        tasks_max_enforce: accepted; no connector has more tasks than `tasks.max`.
        key_converter: the converter of keys; the worker's by default.
        key_converter_plugin_version: accepted; the version that is installed converts.
        value_converter: the converter of values; the worker's by default.
        value_converter_plugin_version: accepted, as for keys.
        header_converter: without effect; headers are carried as bytes.
        header_converter_plugin_version: without effect.
        transforms: the aliases of transforms, in their order.
        predicates: the aliases of predicates, which transforms refer to.
        config_action_reload: accepted; secrets are read again when a task restarts.
        errors_retry_timeout: for how long a record is tried again, in milliseconds, on which a
            converter or a transform fails with an error that may pass, such as a registry that does
            not answer; -1 for no limit. Broken connections are retried without end.
        errors_retry_delay_max_ms: the longest wait between two attempts, in milliseconds, also
            after a broken connection; the first wait is 300 ms, each further one twice as long.
        errors_tolerance: "none" fails the task at a bad record, "all" leaves it out.
        errors_log_enable: whether each record that can't be carried is logged, with its error.
        errors_log_include_messages: whether that log has the record's topic, partition, offset and
            time.
        errors_auto_restart: whether a failed task starts again by itself, with back-off.
    """

    name: str
    connector_class: str
    connector_plugin_version: str | None = None
    tasks_max: Count = 1
    tasks_max_enforce: bool = True
    key_converter: str | None = None
    key_converter_plugin_version: str | None = None
    value_converter: str | None = None
    value_converter_plugin_version: str | None = None
    header_converter: str | None = None
    header_converter_plugin_version: str | None = None
    transforms: tuple[str, ...] = ()
    predicates: tuple[str, ...] = ()
    config_action_reload: Literal["restart", "none"] = "restart"
    errors_retry_timeout: Milliseconds = 0
    errors_retry_delay_max_ms: Annotated[int, msgspec.Meta(ge=1)] = 60_000
    errors_tolerance: Literal["none", "all"] = "none"
    errors_log_enable: bool = False
    errors_log_include_messages: bool = False
    errors_auto_restart: bool = True


class SourceConfig(ConnectorConfig, frozen=True, kw_only=True):
    """The settings of every source.

    Attributes:
        topic: the topic that the source writes, if the connector has no setting of its own for it.
        topic_creation_groups: accepted; a worker creates the topics that are missing.
        exactly_once_support: "required" refuses a source that promises less than exactly once.
        transaction_boundary: accepted; a transaction ends at each commit of the worker, and never
            inside one step of the source.
        transaction_boundary_interval_ms: accepted; the worker's commit interval counts.
        offsets_storage_topic: without effect; the worker's topic of offsets counts.
        errors_deadletterqueue_topic_name: the topic of records that can't be carried.
        errors_deadletterqueue_topic_replication_factor: without effect; the log's default counts.
        errors_deadletterqueue_context_headers_enable: whether dead letters have the headers
            `__connect.errors.*` besides `__streams.errors.*`.
        discover_every: how often the source is asked for its parts.
    """

    topic: str | None = None
    topic_creation_groups: tuple[str, ...] = ()
    exactly_once_support: Literal["requested", "required"] = "requested"
    transaction_boundary: Literal["poll", "interval", "connector"] = "poll"
    transaction_boundary_interval_ms: LongCount | None = None
    offsets_storage_topic: str | None = None
    errors_deadletterqueue_topic_name: str | None = None
    errors_deadletterqueue_topic_replication_factor: Count = 3
    errors_deadletterqueue_context_headers_enable: bool = False
    discover_every: Dur = "30s"


class SinkConfig(ConnectorConfig, frozen=True, kw_only=True):
    """The settings of every sink.

    Attributes:
        topics: the topics that the sink carries outside.
        topics_regex: a regular expression of such topics, instead of `topics`.
        errors_deadletterqueue_topic_name: the topic of records that can't be carried.
        errors_deadletterqueue_topic_replication_factor: without effect; the log's default counts.
        errors_deadletterqueue_context_headers_enable: whether dead letters have the headers
            `__connect.errors.*` besides `__streams.errors.*`.
    """

    topics: tuple[str, ...] = ()
    topics_regex: str | None = None
    errors_deadletterqueue_topic_name: str | None = None
    errors_deadletterqueue_topic_replication_factor: Count = 3
    errors_deadletterqueue_context_headers_enable: bool = False


def common_model(kind: Literal["source", "sink"]) -> type[SourceConfig | SinkConfig]:
    """Return the settings that all connectors of a kind have."""
    models: dict[str, type[Any]] = {"source": SourceConfig, "sink": SinkConfig}
    found: type[SourceConfig | SinkConfig] = models[kind]
    return found
