"""Worker site: the console of a worker, with the pages of its app beside those of the log.

Rule: the console acts as the worker, with all its rights at the log. So it is served without users
only if this machine alone reaches it, and if the worker itself needs no credentials at the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Final

import msgspec

from streamlog.connect.herding.herder_requests import ConnectRefusal
from streamlog.connect_service.peer_forwarding import forwarding_of
from streamlog.connect_service.rest_answers import parse_call
from streamlog.connect_service.rest_port import RestPort
from streamlog.console.app_pages.letter_pages import late_and_dead
from streamlog.console.app_pages.task_pages import tasks
from streamlog.console.app_pages.topology_pages import Graph, node_page, topology
from streamlog.console.connect_desk import refused
from streamlog.console.console_site import Console
from streamlog.console.log_watch import LogWatch
from streamlog.console.page_changes import PageChange
from streamlog.console.page_views import Parts, Query, no_page
from streamlog.console.pages.page_layout import Section, View
from streamlog.console.pages.page_parts import ROOT
from streamlog.console.worker_console.app_watch import AppWatch
from streamlog.console.worker_console.history_looks import HistoryLooks
from streamlog.console.worker_console.letters import Letters
from streamlog.console.worker_console.record_samples import RecordSamples
from streamlog.console.worker_console.table_looks import TableLooks
from streamlog.console.worker_console.thread_samples import ThreadSamples
from streamlog.errors import StreamlogError
from streamlog.http_access.passwords import PasswordGuard
from streamlog.listening import is_local, parse_address
from streamlog.registry_client import RegistrySettings
from streamlog.transport.security import Security
from streamlog.worker.program import Program
from streamlog.worker.worker_sites import ServedConsole, WorkerView

ERRORS_FROM: Final = 400
"""The first HTTP status that refuses a request."""

logger = logging.getLogger(__name__)


def site_of(view: WorkerView, *, security: Security | None = None) -> ServedConsole | None:
    """Return the console of a worker; None: it would open the log to more than can use it already.

    Args:
        view: the worker.
        security: how the worker connects to the log.
    """
    program, clock, passwords = view.start.program, view.deps.clock, view.server.passwords
    why = "" if passwords is not None else _lacks_users(program, security or Security())
    if why:
        logger.info("no console: %s, so it needs users (--web-users FILE)", why)
        return None
    operators = None
    if passwords is not None:
        # None unless named: a new user of the file reads, and changes nothing.
        named = program.web_access.operators.split(",")
        operators = frozenset(each.strip() for each in named) - {""}
    watch = LogWatch(
        # The worker's own log, which lives longer than the console.
        lambda: nullcontext(view.start.log),
        url=lambda: view.start.log_url,
        clock=clock,
        # Of a hundred workers, none looks at the whole log for pages that are not open.
        idle_ms=None,
    )
    console = Console(
        watch,
        clock,
        operators=operators,
        more=AppViews(view, AppWatch(view, clock)),
        registry=partial(_registry_of, view),
        connect=_connect_of(view),
    )
    guarded = console if passwords is None else PasswordGuard(console, passwords, is_open=_none)
    return ServedConsole(ROOT, guarded, console.running)


def _registry_of(view: WorkerView) -> RegistrySettings | None:
    """Return the registry of the app, else the one that the log serves, if there is one."""
    given, url = view.start.program.schema_registry, view.start.log.registry_url
    return RegistrySettings.of(url) if given is None and url else given


def _connect_of(view: WorkerView) -> OwnConnectors | None:
    """Return what answers for the app's connectors; None: it has none."""
    room = view.loop.connect
    return None if room is None else OwnConnectors(room.herding, view)


def _none(_path: str) -> bool:
    return False


def _lacks_users(program: Program, security: Security) -> str:
    host, _ = parse_address(program.web or "", setting="web")
    if not is_local(host):
        return "other machines can reach this address"
    # A password at the log would be worth nothing if this page needed none.
    if security.has_sasl or security.certificate_file or security.context is not None:
        return "the log asks the worker for credentials"
    return ""


SECTIONS: Final = (
    Section("topology", "Topology"),
    Section("tables", "Tables"),
    Section("tasks", "Tasks"),
    Section("letters", "Late and dead"),
    Section("history", "Histories"),
)


class AppViews:
    """The pages of the app of one worker; `MorePages` of its console."""

    def __init__(self, view: WorkerView, watch: AppWatch) -> None:
        self._view, self._watch = view, watch
        self._graph = Graph.of(view.loop.topology)
        self._samples = RecordSamples(view.loop.tap)
        self._letters = Letters(view.start.log, view.start.program)
        self._profiles = ThreadSamples()
        self._tables = TableLooks(view.tables)
        self._histories = HistoryLooks(view.start, view.deps.clock)
        self.sections: Sequence[Section] = SECTIONS
        self.caption = f"app {view.start.program.app_id}"

    async def run(self) -> None:
        """Look at the worker, until cancelled."""
        try:
            await self._watch.run()
        finally:
            self._profiles.stop()

    async def view(  # noqa: PLR0911 - one for each page
        self, parts: Parts, query: Query, token: str | None
    ) -> View:
        """Return a page.

        Raises:
            StreamlogError: what it shows can't be looked at.
        """
        sight = self._watch.sight
        match parts:
            case ("topology",):
                return topology(self._graph, sight, query)
            case ("topology", "nodes", name):
                return await self._node(name, query)
            case ("tasks",):
                return tasks(sight, self._watch.rounds, query, token)
            case ("tables", *rest):
                return await self._of_tables(tuple(rest), query)
            case ("history", *rest):
                return await self._histories.view(tuple(rest), query)
            case ("letters", *rest):
                return await self._of_letters(tuple(rest), query, token)
            case _:
                return no_page()

    async def _of_tables(self, parts: Parts, query: Query) -> View:
        match parts:
            case ():
                return self._tables.all(query)
            case (name,):
                return await self._tables.one(name, query)
            case _:
                return no_page()

    async def _of_letters(self, parts: Parts, query: Query, token: str | None) -> View:
        match parts:
            case ():
                found = await self._letters.topic_rows()
                return late_and_dead(self._watch.sight, self._drops(), found)
            case (topic,):
                return await self._letters.page(topic, query, token)
            case (topic, partition, offset):
                return await self._letters.one(topic, partition, offset, token)
            case _:
                return no_page()

    async def _node(self, name: str, query: Query) -> View:
        found, error = None, ""
        if query.get("sample") == "1" and self._graph.box(name) is not None:
            try:
                found = await self._samples.take(name)
            except StreamlogError as refused:
                error = str(refused)
        return node_page(self._graph, self._watch.sight, name, found, error)

    def _drops(self) -> dict[tuple[str, str], int]:
        metric = self._view.deps.metrics.dropped.metric()
        # A counter's points are numbers; the others are those of histograms.
        return {
            (labels[0], labels[1]): int(count)
            for labels, count in metric.points
            if isinstance(count, int | float)
        }

    def change_of(self, parts: Parts) -> PageChange | None:
        """Return the change that a path stands for; None if nothing can be sent there."""
        if parts == ("tasks", "profile"):
            return self._profiles.change_of()
        return self._letters.change_of(parts)


class OwnConnectors:
    """The connectors of one app; `ConnectPort` of its console.

    Asked here as by their REST API, but not over HTTP: with users, the API needs a password, and
    the console knows none. Readers of the console have shown one, and only operators change things.
    """

    def __init__(self, service: RestPort, view: WorkerView) -> None:
        # A change belongs to the worker that leads the group, which may be another one.
        self._rest = forwarding_of(service, view.start.log.cluster_id, tls=view.server.peer_tls)

    async def ask(self, method: str, path: str) -> bytes:
        """Return the answer to a request.

        Raises:
            UsageError: the request was refused.
        """
        try:
            status, body = await self._rest.answer(parse_call(method, f"/{path}", b"", {}))
        except ConnectRefusal as error:
            raise refused(error.status, str(error)) from error
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        if status >= ERRORS_FROM:
            raise refused(status, data.decode(errors="replace"))
        return data

    def close(self) -> None:
        """Do nothing: the worker closes its connectors."""
