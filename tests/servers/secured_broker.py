"""A broker in this process that authenticates its users, and checks ACLs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.config.connections import Listener
from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.server.socket_server import SocketServer
from streamlog.client.admin import Acl
from streamlog.log import Log
from streamlog.protocol.acls import Operation, Pattern, ResourceType
from streamlog.transport.security import Security

T = TypeVar("T")


@asynccontextmanager
async def secured_broker(data: Path) -> AsyncIterator[str]:
    """Serve the users `shop` and `root`, a super user; yields the broker's URL."""
    config = BrokerConfig(
        flush="os",
        security=SecurityConfig(authorizer="standard", super_users="User:root"),
    )
    async with Log.open(f"embedded:{data}", listen=False) as offline:
        for user in ("shop", "root"):
            await offline.admin().set_password(user, f"of {user}", iterations=4096)
    async with (
        Broker.open(str(data), config=config) as broker,
        SocketServer(broker, [Listener(protocol="SASL_PLAINTEXT")]) as listening,
    ):
        yield f"kafka://127.0.0.1:{listening.servers[0].port}"


async def on_a_secured_broker(data: Path, story: Callable[[str], Awaitable[T]]) -> T:
    """Run a story with the URL of such a broker."""
    async with secured_broker(data) as url:
        return await story(url)


def access(user: str) -> Security:
    """Return how a user proves to be who it is."""
    return Security(
        protocol="SASL_PLAINTEXT", mechanism="SCRAM-SHA-256", user=user, password=f"of {user}"
    )


def allowed(kind: ResourceType, name: str, operation: Operation, *, prefixed: bool = False) -> Acl:
    """Return the ACL that allows an operation to `shop`."""
    return Acl(
        resource_type=kind,
        name=name,
        pattern=Pattern.PREFIXED if prefixed else Pattern.LITERAL,
        principal="User:shop",
        operation=operation,
    )
