"""Worker sites: what a worker's HTTP server has beside its own paths, and what these may look at.

The API of connectors and the console are made above the worker, so they come in as functions.
Rule: a site sees the worker through `WorkerView`, and changes nothing that tasks do.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from streamlog.processing.step import Tap
from streamlog.record import TopicPartition
from streamlog.topology import Topology
from streamlog.worker.access.routed_tables import LocalRows, RoutedTables
from streamlog.worker.assignment.streams_assignor import WorkerPeers
from streamlog.worker.connect.app_herder import AppHerder
from streamlog.worker.connect.connect_room import ConnectRoom
from streamlog.worker.health.hot_keys import HotKeys
from streamlog.worker.health.watchdog import Sight
from streamlog.worker.health.worker_health import WorkerState
from streamlog.worker.program import WorkerStart
from streamlog.worker.task_deps import TaskDeps

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from streamlog.worker.web.worker_server import WorkerServer


class ViewedLoop(Protocol):
    """Port: the loop of a worker, which owns its tasks."""

    connect: ConnectRoom | None
    rows: LocalRows

    @property
    def topology(self) -> Topology:
        """What the tasks of this worker compute."""

    @property
    def hot_keys(self) -> HotKeys:
        """Which keys come most often, for as long as a request asks."""

    @property
    def paused(self) -> Collection[TopicPartition]:
        """The inputs that wait until tasks or agents have room for more records."""

    def state(self) -> WorkerState:
        """Return the present state of this worker."""

    def sights(self) -> Mapping[str, Sight]:
        """Return the progress of all tasks and agents, by name."""

    def tap(self, node: str, tap: Tap | None) -> None:
        """Let `tap` look at the records of a node of this worker; None: no longer."""

    def reason(self, who: str) -> str:
        """Return what a task or an agent waits for; empty if unknown."""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A running worker, as its sites see it."""

    start: WorkerStart
    deps: TaskDeps
    loop: ViewedLoop
    tables: RoutedTables
    """The rows of all workers."""
    peers: WorkerPeers
    """The other workers."""
    server: WorkerServer


@dataclass(frozen=True, slots=True)
class ServedConsole:
    """A console, which asks for passwords itself."""

    path: str
    """The path that it is below."""
    site: ASGIApp
    running: Callable[[], AbstractAsyncContextManager[None]]
    """Returns what looks at the log and the worker in a block."""


ConnectSite: TypeAlias = "Callable[[AppHerder, WorkerServer, str], ASGIApp]"
"""Makes the REST API of connectors, of the server it is part of and the id of the log."""
ConsoleSite: TypeAlias = Callable[[WorkerView], ServedConsole | None]
"""Makes the console; None: it would open the log to more than can use it already."""
ShowRestores: TypeAlias = Callable[
    [Callable[[], Mapping[str, int]]], AbstractAsyncContextManager[None]
]
"""Shows restores in a block, by what returns the records left of each changelog and table."""


def show_nothing(_left: Callable[[], Mapping[str, int]]) -> AbstractAsyncContextManager[None]:
    """Show no restore."""
    return nullcontext()


@asynccontextmanager
async def open_pages(
    view: WorkerView, connect_site: ConnectSite | None, console_site: ConsoleSite | None
) -> AsyncIterator[None]:
    """Serve the worker's pages in the block.

    Args:
        view: the worker.
        connect_site: makes the API of connectors; None: without it.
        console_site: makes the console; None: without it.
    """
    loop, sites = view.loop, dict[str, "ASGIApp"]()
    # An app without connectors has no room for them, and no API.
    room = loop.connect
    if room is not None and connect_site is not None:
        herding, cluster_id = room.herding, view.start.log.cluster_id
        sites[herding.prefix] = connect_site(herding, view.server, cluster_id)
    console = None if console_site is None else console_site(view)
    if console is not None:
        sites[console.path] = console.site
    serving = view.server.open(
        metrics=view.deps.metrics,
        state=loop.state,
        rows=loop.rows,
        tables=view.tables,
        hot_keys=loop.hot_keys,
        topics=loop.topology.topics,
        sites=sites,
        front=None if console is None else console.path,
    )
    running = nullcontext() if console is None else console.running()
    # The console ends first: pages that are kept up to date would hold up the server's end.
    async with serving, running:
        yield
