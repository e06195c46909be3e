"""Neighbours: the other nodes of a cluster, and the connections to them.

What waits has a connection of its own. An entry of the metadata log is waited for at the leader of
the quorum, so nothing else goes there; requests for the controller are decided in the order in
which they come, so they share one; markers, which wait for followers, go to the brokers that lead,
and questions about transactions to those that coordinate.
Controllers are where `controller.quorum.voters` says, brokers where they have registered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.peer_security import controller_listener, peer_listener, peer_security
from streamlog.broker.peers import Address, Peers

if TYPE_CHECKING:
    from streamlog.broker.config import BrokerConfig
    from streamlog.broker.quorum.metadata import ClusterMetadata


class Neighbours:
    """All that this node has connections to.

    Raises:
        ConfigError: the settings lack what the others ask for.
    """

    def __init__(self, config: BrokerConfig, metadata: ClusterMetadata) -> None:
        self._metadata = metadata
        voters = config.quorum.addresses()
        between = peer_listener(config)
        self._listener = between.name
        security = peer_security(config, controller_listener(config))
        self.quorum = Peers(voters.get, security=security)
        """For the log of the quorum."""
        self.controllers = Peers(voters.get, security=security)
        """For what the controller decides."""
        self.brokers = Peers(self._endpoint, security=peer_security(config, between))
        """For brokers, which are reached when they have registered."""
        self.coordinators = Peers(self._endpoint, security=peer_security(config, between))
        """For what is waited for by those who write."""

    def _endpoint(self, node_id: int) -> Address | None:
        broker = self._metadata.brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(self._listener)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    async def close(self) -> None:
        """Hang up on all of them."""
        for each in (self.quorum, self.controllers, self.brokers, self.coordinators):
            await each.close()
