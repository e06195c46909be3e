"""ConfigAdmin: shows and changes the settings of topics and brokers, and lists what has any.

The part of `Admin` that is about settings. Changes to one resource are made together or not at
all; each takes the place of one value, or adds to a list and takes from it (KIP-339).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Literal, TypeAlias

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
    """What becomes of a setting, by Kafka's numbers."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
ALL_BROKERS: Final = "all"
"""In place of a broker's number: the settings that hold for each that has none of its own."""
KINDS: Final[Mapping[int, str]] = {
    TOPIC_RESOURCE: "topic",
    BROKER_RESOURCE: "broker",
    8: "broker logger",
    16: "client metrics",
    32: "group",
}
SOURCES: Final[Mapping[int, str]] = {
    1: "topic",
    2: "broker",
    3: "all brokers",
    4: "start",
    5: "default",
}
"""Where a value comes from, by Kafka's numbers: set for the topic, altered for the broker or for
all of them, given when the broker was started, or nobody's wish."""

BrokerName: TypeAlias = int | Literal["all"]


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """A setting of a topic or broker."""

    name: str
    value: str | None
    """None if nobody is shown it."""
    source: str
    """One of `SOURCES`, or empty if the log knows others."""
    is_read_only: bool
    documentation: str | None
    is_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class ConfigResource:
    """Something that has settings."""

    kind: str
    """`topic`, `broker`, or what else of `KINDS` a cluster knows."""
    name: str


@dataclass(frozen=True, slots=True)
class Append:
    """A change: add to a setting that is a list what is not in it, commas between."""

    value: str


@dataclass(frozen=True, slots=True)
class Subtract:
    """A change: take from a setting that is a list."""

    value: str


Change: TypeAlias = str | Append | Subtract | None
"""A new value, a part of a list that comes or goes, or None: back to the default."""


class ConfigAdmin(AdminArea):
    """Manages settings."""

    async def describe_configs(
        self, topic: str | None = None, *, broker: BrokerName | None = None
    ) -> dict[str, ConfigEntry]:
        """All settings of a topic or a broker, by name.

        Without either they are those of the broker that manages topics; of "all" brokers, those
        that were set for all.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            LogError: there is no such broker.
        """

        async def attempt() -> dict[str, ConfigEntry]:
            node_id, kind, name = await self._resource(topic, broker)
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
        """Change settings of a topic or a broker, all of them or none.

        Without either they are those of the broker that manages topics. With `validate_only`
        nothing changes, and what would be refused is.

        Raises:
            UnknownTopicOrPartition: there is no such topic.
            LogError: a setting is unknown, or a value not allowed.
        """
        configs = [_alterable(name, change) for name, change in changes.items()]

        async def attempt() -> None:
            node_id, kind, name = await self._resource(topic, broker)
            resource = AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
            request = IncrementalAlterConfigsRequest(
                resources=[resource], validate_only=validate_only
            )
            response = await self._cluster.call(node_id, request, IncrementalAlterConfigsResponse)
            outcomes = [
                (each.resource_name, each.error_code, each.error_message)
                for each in response.responses
            ]
            raise_refused("alter settings of", outcomes)

        await self._cluster.retrying(attempt)

    async def list_config_resources(self) -> list[ConfigResource]:
        """Everything that has settings: topics, brokers, and what else a cluster has.

        Raises:
            UnsupportedVersion: the brokers are older than Kafka 4.1.
        """

        def read(response: ListConfigResourcesResponse) -> list[ConfigResource]:
            check("list what has settings", response.error_code)
            return [
                ConfigResource(KINDS.get(each.resource_type, ""), each.resource_name)
                for each in response.config_resources
            ]

        request = ListConfigResourcesRequest()
        return await self._ask_controller(request, ListConfigResourcesResponse, read)

    async def _resource(self, topic: str | None, broker: BrokerName | None) -> tuple[int, int, str]:
        """Whom to ask, and the type and name of what."""
        if topic is not None and broker is not None:
            raise UsageError("settings are a topic's or a broker's: name one of them")
        controller = await self._cluster.controller()
        if topic is not None:
            return controller, TOPIC_RESOURCE, topic
        if broker == ALL_BROKERS:
            return controller, BROKER_RESOURCE, ""
        node_id = controller if broker is None else int(broker)
        known = await self._cluster.nodes()
        # Of a broker that is not there any other says so.
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
