"""Reaching: how a worker is reached over HTTP, and how it reaches the rows of others.

The one place that imports `worker/web`, and only when it is asked for: the libraries come with an
extra. Rule of the file: wiring, no decisions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.dsl.services import WebPage
from streamlog.errors import ConfigError
from streamlog.processing.table_rows import tables_of
from streamlog.topology import Topology
from streamlog.worker.access.local import LocalRows
from streamlog.worker.access.questions import RowHolder
from streamlog.worker.access.routed import Reach, RoutedTables
from streamlog.worker.assignment.worker_peers import WorkerPeers

if TYPE_CHECKING:
    from streamlog.worker.web.door import Door

logger = repeated.logger(__name__)


def door_at(address: str | None, pages: Sequence[WebPage]) -> AbstractContextManager[Door | None]:
    """The worker's HTTP server, not open yet; none without an address.

    `pages` are the app's own.

    Raises:
        ConfigError: its libraries are not installed, or the address is none.
        ListenError: the address is taken.
    """
    if address is None:
        if pages:
            logger.warning(
                "nobody can see the app's pages (%s): give it web= or --web",
                ", ".join(page.path for page in pages),
            )
        return nullcontext()
    try:
        from streamlog.worker.web import door  # noqa: PLC0415 - an extra, for who asks for it
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"web={address!r} needs an extra that is not installed ({error.name} is missing): "
            "pip install 'streamlog[web]'"
        ) from error
    return door.bound(address, pages)


def peer_at(endpoint: str) -> RowHolder:
    """Another worker of the app.

    Raises:
        ConfigError: the library to ask it with is not installed.
    """
    try:
        from streamlog.worker.web.peer_client import PeerRows  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"rows of another worker are asked for over HTTP, which needs an extra that is not "
            f"installed ({error.name} is missing): pip install 'streamlog[web]'"
        ) from error
    return PeerRows(endpoint)


def tables_over(
    topology: Topology,
    counts: Mapping[str, int],
    *,
    peers: WorkerPeers,
    local: LocalRows,
    producer: Producer,
    clock: Clock,
) -> RoutedTables:
    """The rows of all tables, wherever they are; `producer` writes those that are put."""

    async def send(
        topic: str, value: bytes | None, *, key: bytes | None
    ) -> tuple[str, int, int, int]:
        return await (await producer.send(topic, value, key=key))

    return RoutedTables(
        Reach(
            app_id=topology.app_id,
            tables=tables_of(topology),
            counts=counts,
            peers=peers,
            local=local,
            remote=peer_at,
            send=send,
            clock=clock,
        )
    )
