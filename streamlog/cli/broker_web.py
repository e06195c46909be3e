"""A broker's HTTP server: liveness, readiness, and metrics for Prometheus.

It uses the workers' HTTP server (`worker/web`), the extra `[web]`. Not done here: the metrics,
which every part of the broker declares in the registry of its directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from streamlog.http_server import listen, serve
from streamlog.worker.health.worker_health import HealthReport
from streamlog.worker.web.web_server import make_site

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker
    from streamlog.broker.cluster.figures import BrokerStatus


@asynccontextmanager
async def serve_health(broker: Broker, address: str) -> AsyncIterator[str]:
    """Serve at `address` in the block; yields the address with the port that was picked.

    Raises:
        ConfigError: the address is not HOST:PORT.
        ListenError: the address is taken, or does not belong to this machine.
    """
    with listen(address) as listener:
        site = make_site(BrokerHealth(broker), broker.directory.metrics, hosts=listener.hosts)
        async with serve(site, listener):
            yield listener.endpoint


class BrokerHealth:
    """Answers the health checks of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def live(self) -> HealthReport:
        """Report that the broker runs: one whose disk has failed ends, and does not answer."""
        return HealthReport(is_well=True, facts={"live": True, **_facts(self._broker.status())})

    def ready(self) -> HealthReport:
        """Report whether the broker is registered and unfenced with a controller that it knows.

        Lagging replicas are reported, but don't make it unready: clients need it all the more.
        """
        status = self._broker.status()
        lacking = status.partitions.under_replicated
        is_well = status.is_ready
        facts = {"ready": is_well, **_facts(status), "under_replicated": lacking}
        return HealthReport(is_well=is_well, facts=facts)


def _facts(status: BrokerStatus) -> dict[str, object]:
    return {
        "node": status.node_id,
        "state": status.state.value,
        "controller": status.quorum.leader_id,
        "epoch": status.quorum.epoch,
    }
