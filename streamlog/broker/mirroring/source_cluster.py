"""SourceCluster: the cluster that a link leads to, as this broker reaches it.

Any broker of the source answers for its metadata; the addresses of the link count until the first
answer and again when no known broker can be reached. Not done here: what is fetched
(`source_fetcher`), retries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

import msgspec

from streamlog.broker.quorum.metadata.mirror_topics import MirrorLink
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    CorruptData,
    RequestTimedOut,
    StreamlogError,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.cluster_metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from streamlog.protocol.schema import ZERO_UUID, Message
from streamlog.transport.client_connection import TcpTransport, Transport
from streamlog.transport.security import Security

CONNECT_MS = 10_000
"""How long to wait for a broker of the source to accept a connection."""
REQUEST_MS = 30_000
"""How long to wait for an answer."""
BOOTSTRAP = "bootstrap.servers"
CLIENT_ID = "streamlog-mirror"
DELETED = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)
"""What a source answers of a topic that it has deleted."""

Address = tuple[str, int]
M = TypeVar("M", bound=Message)


class SourceLeader(msgspec.Struct, frozen=True):
    """The leader of a partition of the source."""

    node_id: int
    """-1 if it has none now."""
    leader_epoch: int
    """-1 if the source does not tell."""


class SourceTopic(msgspec.Struct, frozen=True):
    """A topic of the source."""

    topic_id: bytes
    """All zero if the source has no topic ids."""
    leaders: tuple[SourceLeader, ...]
    """By the number of the partition."""


class SourceCluster:
    """Connections to the brokers of a source, and its metadata.

    Args:
        addresses: where its brokers are reached at first.
        cluster_id: its cluster id; empty if it is not known yet.
        security: how to connect.
        client_id: the name of this broker in the logs and quotas of the source.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        *,
        cluster_id: str,
        security: Security | None,
        client_id: str,
    ) -> None:
        self.cluster_id = cluster_id
        self.topics: dict[str, SourceTopic] = {}
        """The topics that `refresh` has asked for and that exist."""
        self._addresses = list(addresses)
        self._security = security
        self._client_id = client_id
        self._brokers: dict[int, Address] = {}
        self._shared: Transport | None = None
        self._asking = asyncio.Lock()

    @property
    def broker_ids(self) -> list[int]:
        """The brokers of the source, as `refresh` has found them."""
        return [*self._brokers]

    async def refresh(self, names: Iterable[str] | None) -> None:
        """Ask for topics by name, or for all of them (None).

        Raises:
            ConnectionLost: no broker of the source can be reached.
            RequestTimedOut: it does not answer.
            AuthenticationFailed: it refuses this broker.
            ConfigError: the addresses lead to another cluster than that of the link.
        """
        # Never create: a misspelt pattern must not make topics at the source.
        wanted = None if names is None else [MetadataRequestTopic(name=each) for each in names]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        answer = await self.ask(request, MetadataResponse)
        found = answer.cluster_id or ""
        # An address that was given to another cluster: its epochs and offsets have nothing to do
        # with what was copied, and a topic of the same name would be mixed into it.
        if found and self.cluster_id and found != self.cluster_id:
            self.topics, self._brokers = {}, {}
            await self._hang_up()
            raise ConfigError(
                f"the addresses of the link lead to cluster {found}, and not any more to"
                f" {self.cluster_id}, for which it was created: correct {BOOTSTRAP}, or create"
                " another link"
            )
        self.cluster_id = found or self.cluster_id
        self._brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        self.topics = {
            topic.name: SourceTopic(
                topic_id=topic.topic_id or ZERO_UUID,
                leaders=tuple(
                    SourceLeader(each.leader_id, each.leader_epoch)
                    for each in sorted(topic.partitions, key=lambda p: p.partition_index)
                ),
            )
            for topic in answer.topics
            if topic.name is not None and not topic.error_code
        }

    async def ask(self, request: Message, answer: type[M]) -> M:
        """Ask any broker, over a connection that all such questions share.

        Raises:
            ConnectionLost: no broker of the source can be reached.
            RequestTimedOut: it does not answer.
            AuthenticationFailed: it refuses this broker.
        """
        async with self._asking:
            if self._shared is None:
                self._shared = await self._connect_to_any()
            try:
                found = await self._shared.call(request, timeout_ms=REQUEST_MS)
            except (ConnectionLost, RequestTimedOut, CorruptData):
                await self._hang_up()
                raise
        if not isinstance(found, answer):
            raise CorruptData(f"the source answered {type(found).__name__} to {request!r}")
        return found

    async def connect(self, node_id: int) -> Transport:
        """Open a connection to a broker; the caller is its only user and closes it.

        Raises:
            ConnectionLost: it can't be reached, or is not known.
            RequestTimedOut: it accepts connections, and does not answer.
            AuthenticationFailed: it refuses this broker.
        """
        address = self._brokers.get(node_id)
        if address is None:
            raise ConnectionLost(f"the source has no broker {node_id}")
        return await self._connect(address)

    async def refusals(self, names: Collection[str]) -> dict[str, int]:
        """Return the errors of topics that this user may not see, by name.

        The list of all topics leaves them out, as if they were deleted.

        Raises:
            ConnectionLost: no broker of the source can be reached.
            RequestTimedOut: it does not answer.
            AuthenticationFailed: it refuses this broker.
        """
        if not names:
            return {}
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=each) for each in names],
            allow_auto_topic_creation=False,
        )
        answer = await self.ask(request, MetadataResponse)
        return {
            topic.name: topic.error_code
            for topic in answer.topics
            if topic.name is not None and topic.error_code not in (ErrorCode.NONE, *DELETED)
        }

    async def check_id(self, transport: Transport, name: str, topic_id: bytes) -> None:
        """Ask a broker whether a topic still is the one with this id, or has none.

        Raises:
            ConnectionLost: the broker can't be reached.
            RequestTimedOut: it does not answer.
            CorruptData: it knows another topic by this name, or none.
        """
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
        )
        answer = await transport.call(request, timeout_ms=REQUEST_MS)
        if not isinstance(answer, MetadataResponse):
            raise CorruptData(f"the source answered {type(answer).__name__} to {request!r}")
        ids = {topic.topic_id or ZERO_UUID for topic in answer.topics if not topic.error_code}
        if not ids or (ZERO_UUID not in (topic_id, *ids) and topic_id not in ids):
            raise CorruptData(f"topic {name} of the source was deleted, or created again")

    async def close(self) -> None:
        """Close the shared connection."""
        await self._hang_up()

    async def _connect_to_any(self) -> Transport:
        reasons = []
        for address in dict.fromkeys([*self._brokers.values(), *self._addresses]):
            try:
                return await self._connect(address)
            except (ConnectionLost, RequestTimedOut) as error:
                reasons.append(str(error))
        raise ConnectionLost("; ".join(reasons) or "the link names no address of the source")

    async def _connect(self, address: Address) -> Transport:
        return await TcpTransport.connect(
            *address, client_id=self._client_id, timeout_ms=CONNECT_MS, security=self._security
        )

    async def _hang_up(self) -> None:
        shared, self._shared = self._shared, None
        if shared is None:
            return
        try:
            await shared.close()
        except StreamlogError:
            return  # It is lost already.


def source_of(link: MirrorLink, security: Security | None) -> SourceCluster:
    """Return the cluster that a link leads to, not connected yet.

    Args:
        link: the link.
        security: its login; see `link_login`.

    Raises:
        ConfigError: the addresses are missing or malformed.
    """
    return SourceCluster(
        addresses_of(link.settings.get(BOOTSTRAP, "")),
        cluster_id=link.source_cluster_id,
        security=security,
        client_id=CLIENT_ID,
    )


def addresses_of(text: str) -> list[Address]:
    """Return the addresses in `bootstrap.servers`.

    Raises:
        ConfigError: there is none, or one is not HOST:PORT.
    """
    addresses = []
    for each in text.split(","):
        host, colon, port = each.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or int(port) > 0xFFFF:  # noqa: PLR2004 - ports
            raise ConfigError(
                f"{BOOTSTRAP}={text!r}: write HOST:PORT of brokers of the source, with commas"
                " between them"
            )
        addresses.append((host.strip("[]"), int(port)))
    return addresses
