"""HTTP wiring: the worker's server, and its access to the rows of other workers.

Only this module imports `worker.web`, inside the functions that need it, because the libraries come
with an extra. Rule: connects objects, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.clock import Clock
from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command
from streamlog.processing.table_rows import tables_of
from streamlog.topology import Topology
from streamlog.worker.access.questions import RowHolder
from streamlog.worker.access.routed_tables import LocalRows, RoutedTables, RoutingDeps
from streamlog.worker.assignment.streams_assignor import WorkerPeers
from streamlog.worker.program import Program

if TYPE_CHECKING:
    from streamlog.worker.web.peer_http import PeerLogin
    from streamlog.worker.web.worker_server import WorkerServer

logger = repeated.logger(__name__)


def make_server(program: Program, clock: Clock) -> AbstractContextManager[WorkerServer | None]:
    """Bind the worker's HTTP server without opening it; yields None if the program has none.

    Raises:
        ConfigError: the server's libraries are missing, the address is malformed, others can reach
            it without a login, or a file of users or certificates can't be used.
        ListenError: another process uses the address.
    """
    address, pages = program.web, program.pages
    if address is None:
        if pages:
            logger.warning(
                "the app's pages (%s) are not served: set web= or --web",
                ", ".join(page.path for page in pages),
            )
        return nullcontext()
    try:
        from streamlog.worker.web import worker_server  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"web={address!r} needs an extra that is not installed ({error.name} is missing): "
            f"{install_command('web')}"
        ) from error
    return worker_server.bind(address, pages, program.web_access, clock)


def make_peer(endpoint: str, login: PeerLogin | None = None) -> RowHolder:
    """Return access to the rows of another worker of the app.

    Args:
        endpoint: HOST:PORT of the worker.
        login: how this worker shows the other one who it is; None: it need not.

    Raises:
        ConfigError: the HTTP client's libraries are not installed.
    """
    try:
        from streamlog.worker.web.table_pages import PeerRows  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reading rows of another worker over HTTP needs an extra that is not "
            f"installed ({error.name} is missing): {install_command('web')}"
        ) from error
    return PeerRows(endpoint, login)


def make_table_access(
    topology: Topology,
    counts: Mapping[str, int],
    *,
    peers: WorkerPeers,
    local: LocalRows,
    producer: Producer,
    clock: Clock,
    login: PeerLogin | None = None,
) -> RoutedTables:
    """Return access to the rows of all tables on all workers.

    Args:
        topology: the app's.
        counts: the partitions of its topics.
        peers: the other workers.
        local: the rows of this worker.
        producer: writes what is put.
        clock: the time.
        login: how this worker shows others who it is; None: it need not.
    """

    async def send(
        topic: str, value: bytes | None, *, key: bytes | None
    ) -> tuple[str, int, int, int]:
        return await (await producer.send(topic, value, key=key))

    return RoutedTables(
        RoutingDeps(
            app_id=topology.app_id,
            tables=tables_of(topology),
            counts=counts,
            peers=peers,
            local=local,
            # Called with the first query to another worker: an app that sends none needs no extra.
            remote=partial(make_peer, login=login),
            send=send,
            clock=clock,
        )
    )
