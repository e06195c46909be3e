"""The schema registry: a write that a broker passes on to the primary.

Declarations only, see `schema`. The API is ours, like those of `publishing`, and only brokers send
it. The request is that of the REST API. Its sender has authenticated and authorized the client.
"""

from __future__ import annotations

from typing import ClassVar

from streamlog.protocol.schema import Message, int16, int64, opaque, string


class WriteToRegistryRequest(Message, versions="0-0", flexible_from=0):
    """Perform a write of the schema registry, as its primary."""

    __response__: ClassVar[WriteToRegistryResponse]
    method: str = string("0+")
    # Path and query, percent-encoded as the client has sent them.
    target: str = string("0+")
    body: bytes = opaque("0+")
    timeout_ms: int = int64("0+")


class WriteToRegistryResponse(Message, versions="0-0", flexible_from=0):
    """The response of the REST API; with an error, nothing was written.

    Errors: NOT_LEADER_OR_FOLLOWER if the broker is not the primary, or runs no registry.
    """

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    status: int = int16("0+")
    body: bytes = opaque("0+")
    # A replay of `_schemas` up to here includes the write.
    end_offset: int = int64("0+", default=-1)
