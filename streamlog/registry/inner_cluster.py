"""Inner cluster: clients inside a broker's process, such as its schema registry and its console.

Rule of the module: such clients act as the broker itself. They have all rights, so what they show
and change has to be guarded by whatever serves it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamlog.broker.server.embedded import EmbeddedTransport
from streamlog.client.cluster import Address, Cluster
from streamlog.errors import ConnectionLost

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker
    from streamlog.transport.client_connection import Transport


def cluster_within(broker: Broker, *, client_id: str) -> Cluster:
    """Return the connections of a client in the broker's process, to the broker's cluster.

    Alone, a broker is called without a socket. In a cluster every broker, this one too, is called
    at the listener between brokers, whichever of them leads.
    """
    access = broker.registry_access
    if access.is_alone:

        async def enter(host: str, port: int) -> Transport:  # noqa: ARG001 - there is one broker
            return EmbeddedTransport(broker, client_id=client_id)

        return Cluster(lambda: [broker.advertised], enter, access.clock, client_id=client_id)

    def addresses() -> Sequence[Address]:
        found = access.addresses()
        if not found:
            raise ConnectionLost("no broker of the cluster is registered yet")
        return found

    async def connect(host: str, port: int) -> Transport:
        return await access.connect(host, port, client_id=client_id)

    return Cluster(addresses, connect, access.clock, client_id=client_id)
