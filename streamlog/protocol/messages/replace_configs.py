"""AlterConfigs: replaces all settings of a resource (KIP-133), as was done before KIP-339.

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks. It has
a room of its own because Kafka gives its structs the names of those of IncrementalAlterConfigs.
"""

from __future__ import annotations

from streamlog.protocol.messages.admin import AlterConfigsResourceResponse
from streamlog.protocol.schema import Message, Struct, array, boolean, int8, int32, string


class AlterableConfig(Struct):
    """A setting and its value."""

    name: str = string("0+")
    value: str | None = string("0+", nullable="0+")


class AlterConfigsResource(Struct):
    """All settings of a topic (type 2) or broker (4) that are not to be at their defaults."""

    resource_type: int = int8("0+")
    resource_name: str = string("0+")
    configs: list[AlterableConfig] = array(AlterableConfig, "0+")


class AlterConfigsRequest(Message, versions="0-2", flexible_from=2):
    """Replace settings."""

    resources: list[AlterConfigsResource] = array(AlterConfigsResource, "0+")
    validate_only: bool = boolean("0+")


class AlterConfigsResponse(Message, versions="0-2", flexible_from=2):
    """What became of it."""

    throttle_time_ms: int = int32("0+")
    responses: list[AlterConfigsResourceResponse] = array(AlterConfigsResourceResponse, "0+")
