"""Our worker in this process, with the connectors of the tests, over a broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from streamlog.clock import SystemClock
from streamlog.connect import names
from streamlog.connect_service.connector_offsets import ConnectorOffsets
from streamlog.connect_service.herder_shell import ServiceSettings, open_service
from streamlog.connect_service.peer_forwarding import PeerForwarding
from streamlog.connect_service.rest_answers import ConnectRest
from streamlog.connect_service.rest_site import RestSite
from streamlog.http_server import listen, serve
from streamlog.log import Log
from streamlog.worker.connect.logger_levels import set_level
from tests.connect_service import outside

SETTINGS = ServiceSettings(
    group_id="ours",
    configs_topic="our-configs",
    offsets_topic="our-offsets",
    status_topic="our-status",
    offsets_partitions=3,
    status_partitions=1,
    commit_ms=200,
)


@contextmanager
def our_worker(bootstrap: str, settings: ServiceSettings = SETTINGS) -> Iterator[str]:
    """Run a worker; yields the URL of its REST API."""
    over, begun = threading.Event(), threading.Event()
    found: list[str | BaseException] = []

    async def main() -> None:
        with listen("127.0.0.1:0", setting="rest") as listener:
            async with (
                Log.open(f"kafka://{bootstrap}") as log,
                open_service(
                    log,
                    SystemClock(),
                    settings,
                    worker_id=listener.endpoint,
                    resolve=str,
                    set_level=set_level,
                ) as service,
            ):
                cluster_id = (await log.admin().describe_cluster()).cluster_id or ""
                rest = ConnectRest(service, ConnectorOffsets(service), cluster_id=cluster_id)
                async with serve(RestSite(PeerForwarding(service, rest), listener.hosts), listener):
                    await service.ready.wait()
                    found.append(f"http://{listener.endpoint}")
                    begun.set()
                    await asyncio.to_thread(over.wait)

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            found.append(error)
            raise
        finally:
            begun.set()

    here = "tests.connect_service.outside"
    with (
        mock.patch.object(names, "BUILT_IN", {"Numbers": here, "Listed": here}),
        mock.patch.object(outside, "BROKEN", {"broken"}),
    ):
        thread = threading.Thread(target=run)
        thread.start()
        try:
            begun.wait()
            if isinstance(found[0], BaseException):
                raise found[0]
            yield found[0]
        finally:
            over.set()
            thread.join()
