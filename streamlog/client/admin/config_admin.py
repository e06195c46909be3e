"""ConfigAdmin: shows and changes the settings of topics and brokers, and lists the resources.

Changes to one resource are made together or not at all. Each change replaces a value, or adds to a
list or removes from it (KIP-339).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Final, Literal, TypeAlias

import msgspec

from streamlog.client.admin.admin_area import AdminArea, check, raise_refused
from streamlog.errors import UsageError
from streamlog.protocol.messages.topics_and_configs import (
    AlterableConfig,
    AlterConfigsResource,
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)


class _Operation(IntEnum):
    """How a change alters a setting, with Kafka's numbers (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
BROKER_LOGGER_RESOURCE: Final = 8
CLIENT_METRICS_RESOURCE: Final = 16
ALL_BROKERS: Final = "all"
"""In place of a broker's id: the settings of all brokers that have no value of their own."""
KINDS: Final[Mapping[int, str]] = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    BROKER_LOGGER_RESOURCE: "broker logger",
    CLIENT_METRICS_RESOURCE: "client metrics",
    32: "group",
}
SOURCES: Final[Mapping[int, str]] = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "start",
    5: "default",
    6: "logger",
    7: "client metrics",
}
"""The source of a value, by Kafka's numbers: set for the topic, altered for the broker or for all
brokers, given at the broker's start, or the default."""

BrokerName: TypeAlias = int | Literal["all"]


class ConfigEntry(msgspec.Struct, frozen=True):
    """A setting of a topic or broker, with its value."""

    name: str
    value: str | None
    """None if the value is sensitive: brokers never send it."""
    source: str
    """One of `SOURCES`; empty for an unknown source."""
    is_read_only: bool
    documentation: str | None
    is_sensitive: bool = False


class ConfigResource(msgspec.Struct, frozen=True):
    """A topic, a broker or another thing that has settings."""

    kind: str
    """One of `KINDS`; empty for an unknown kind."""
    name: str


class Append(msgspec.Struct, frozen=True):
    """A change that adds values, separated by commas, to a list that does not have them yet."""

    value: str


class Subtract(msgspec.Struct, frozen=True):
    """A change that removes values, separated by commas, from a list."""

    value: str


Change: TypeAlias = str | Append | Subtract | None
"""A new value, values to add to or remove from a list, or None for the default."""


class ConfigAdmin(AdminArea):
    """Describes and alters settings of topics and brokers."""

    async def describe_configs(
        self, topic: str | None = None, *, broker: BrokerName | None = None
    ) -> dict[str, ConfigEntry]:
        """Return all settings of a topic or a broker, by name.

        Args:
            topic: the topic's name.
            broker: the broker's id; "all" for the settings that were altered for all brokers.
                Without topic and broker, the settings are the controller's.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            LogError: the broker does not exist.
            UsageError: both a topic and a broker are given.
        """
        return await self._describe_resource(lambda: self._resource(topic, broker))

    async def _describe_resource(
        self, resource: Callable[[], Awaitable[tuple[int, int, str]]]
    ) -> dict[str, ConfigEntry]:
        async def attempt() -> dict[str, ConfigEntry]:
            node_id, kind, name = await resource()
            asked = DescribeConfigsResource(
                resource_type=kind, resource_name=name, configuration_keys=None
            )
            request = DescribeConfigsRequest(resources=[asked], include_documentation=True)
            response = await self._cluster.call(node_id, request, DescribeConfigsResponse)
            outcomes = [
                (each.resource_name, each.error_code, each.error_message)
                for each in response.results
            ]
            raise_refused("describe settings of", outcomes)
            return {
                entry.name: ConfigEntry(
                    name=entry.name,
                    value=entry.value,
                    source=SOURCES.get(entry.config_source, ""),
                    is_read_only=entry.read_only,
                    documentation=entry.documentation,
                    is_sensitive=entry.is_sensitive,
                )
                for result in response.results
                for entry in result.configs
            }

        return await self._cluster.retrying(attempt)

    async def alter_configs(
        self,
        changes: Mapping[str, Change],
        *,
        topic: str | None = None,
        broker: BrokerName | None = None,
        validate_only: bool = False,
    ) -> None:
        """Change settings of a topic or a broker, all of them or none (KIP-339).

        Args:
            changes: setting to its change.
            topic: the topic's name.
            broker: the broker's id, or "all" for all brokers. Without topic and broker, the
                settings are the controller's.
            validate_only: check the request, and change nothing.

        Raises:
            UnknownTopicOrPartition: the topic does not exist.
            LogError: a setting is unknown, or a value invalid.
            UsageError: both a topic and a broker are given.
        """
        await self._alter_resource(
            lambda: self._resource(topic, broker), changes, validate_only=validate_only
        )

    async def _alter_resource(
        self,
        resource: Callable[[], Awaitable[tuple[int, int, str]]],
        changes: Mapping[str, Change],
        *,
        validate_only: bool = False,
    ) -> None:
        configs = [_alterable(name, change) for name, change in changes.items()]

        async def attempt() -> None:
            node_id, kind, name = await resource()
            altered = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            request = IncrementalAlterConfigsRequest(
                resources=[altered], validate_only=validate_only
            )
            response = await self._cluster.call(node_id, request, IncrementalAlterConfigsResponse)
            outcomes = [
                (each.resource_name, each.error_code, each.error_message)
                for each in response.responses
            ]
            raise_refused("alter settings of", outcomes)

        await self._cluster.retrying(attempt)

    async def describe_loggers(self, broker: int) -> dict[str, ConfigEntry]:
        """Return the loggers of a broker, with their levels as values (KIP-412).

        Raises:
            LogError: the broker does not exist, or is not alive.
        """
        return await self._describe_resource(lambda: self._loggers(broker))

    async def alter_loggers(self, broker: int, levels: Mapping[str, str | None]) -> None:
        """Set levels of loggers until the broker stops, all of them or none (KIP-412).

        Args:
            broker: its id.
            levels: logger to its level, one of TRACE, DEBUG, INFO, WARN, ERROR and FATAL, or None
                for that of its parent.

        Raises:
            LogError: a logger or a level is unknown; the broker does not exist, or is not alive.
        """
        await self._alter_resource(lambda: self._loggers(broker), levels)

    async def list_config_resources(self) -> list[ConfigResource]:
        """Return everything that has settings: topics, brokers, and so on (KIP-1142).

        Raises:
            UnsupportedVersion: the brokers are older than Kafka 4.1.
        """

        def read(response: ListConfigResourcesResponse) -> list[ConfigResource]:
            check("list config resources", response.error_code)
            return [
                ConfigResource(KINDS.get(each.resource_type, ""), each.resource_name)
                for each in response.config_resources
            ]

        request = ListConfigResourcesRequest()
        return await self._ask_controller(request, ListConfigResourcesResponse, read)

    async def list_client_metrics(self) -> list[str]:
        """Return the names of all subscriptions to metrics of clients (KIP-714).

        Raises:
            UnsupportedVersion: the brokers are older than Kafka 3.7.
        """

        def read(response: ListConfigResourcesResponse) -> list[str]:
            check("list client metrics", response.error_code)
            found = response.config_resources
            return [
                each.resource_name
                for each in found
                if each.resource_type == CLIENT_METRICS_RESOURCE
            ]

        # Version 0 has no types, and lists nothing else.
        request = ListConfigResourcesRequest(resource_types=[CLIENT_METRICS_RESOURCE])
        return await self._ask_controller(request, ListConfigResourcesResponse, read)

    async def describe_client_metrics(self, name: str) -> dict[str, ConfigEntry]:
        """Return the settings of a subscription, by name; defaults if it does not exist."""
        return await self._describe_resource(lambda: self._subscription(name))

    async def alter_client_metrics(self, name: str, changes: Mapping[str, Change]) -> None:
        """Create a subscription to metrics of clients, or change one (KIP-714).

        Args:
            name: the subscription.
            changes: `metrics`, `interval.ms` or `match`, each with its change.

        Raises:
            LogError: a setting is unknown, or a value invalid.
        """
        await self._alter_resource(lambda: self._subscription(name), changes)

    async def delete_client_metrics(self, name: str) -> None:
        """Delete a subscription; nothing happens if it does not exist."""
        settings = await self.describe_client_metrics(name)
        await self.alter_client_metrics(name, dict.fromkeys(settings))

    async def _subscription(self, name: str) -> tuple[int, int, str]:
        return await self._cluster.controller(), CLIENT_METRICS_RESOURCE, name

    async def _loggers(self, broker: int) -> tuple[int, int, str]:
        # Only that broker knows its loggers.
        return broker, BROKER_LOGGER_RESOURCE, str(broker)

    async def _resource(self, topic: str | None, broker: BrokerName | None) -> tuple[int, int, str]:
        """Return the broker to send the request to, and the type and name of the resource."""
        if topic is not None and broker is not None:
            raise UsageError("both a topic and a broker are given: settings belong to one of them")
        controller = await self._cluster.controller()
        if topic is not None:
            return controller, TOPIC_RESOURCE, topic
        if broker == ALL_BROKERS:
            return controller, BROKER_RESOURCE, ""
        node_id = controller if broker is None else int(broker)
        known = await self._cluster.nodes()
        # A broker answers for its own settings. For a broker that is not alive, the controller
        # answers, with an error.
        return node_id if node_id in known else controller, BROKER_RESOURCE, str(node_id)


def _alterable(name: str, change: Change) -> AlterableConfig:
    match change:
        case None:
            operation, value = _Operation.DELETE, None
        case Append(value):
            operation = _Operation.APPEND
        case Subtract(value):
            operation = _Operation.SUBTRACT
        case value:
            operation = _Operation.SET
    return AlterableConfig(name=name, config_operation=operation, value=value)
