"""What has settings: ListConfigResources (KIP-1142), in its first version KIP-714's.

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks.
"""

from __future__ import annotations

from streamlog.protocol.schema import Message, Struct, array, int8, int8_array, int16, int32, string


class ListConfigResourcesRequest(Message, versions="0-1", flexible_from=0):
    """List the resources of these types, or if there are none, of all.

    Version 0 is about subscriptions of client metrics alone.
    """

    resource_types: list[int] = int8_array("1+")


class ConfigResource(Struct):
    """A resource; see DescribeConfigs for the numbers of types."""

    resource_name: str = string("0+")
    resource_type: int = int8("1+", default=16)


class ListConfigResourcesResponse(Message, versions="0-1", flexible_from=0):
    """What there is. Errors: UNSUPPORTED_VERSION (a type), CLUSTER_AUTHORIZATION_FAILED."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    config_resources: list[ConfigResource] = array(ConfigResource, "0+")
