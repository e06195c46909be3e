"""`streamlog worker`: runs an app's tasks, agents and schedules in one or more processes.

With `-w N|auto` a supervisor starts the workers. It also runs the app's embedded log, so that the
log outlives a worker. A process with a slot in its environment is a worker of a supervisor: a
static member of the group. Only the first process of the first slot prints the banner.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

from streamlog.cli.output.restore_progress import shown_restores
from streamlog.cli.session import (
    LogOption,
    Session,
    WebOption,
    collect_rarely,
    keep_freed_memory,
    my_slot,
    printer,
    serve,
    serve_until_orphaned,
)
from streamlog.cli.terminal import log_warnings, out
from streamlog.cli.topology_commands import print_difference, version
from streamlog.clock import SystemClock
from streamlog.connect.declared_connectors import SinkConnector, SourceConnector
from streamlog.errors import UsageError
from streamlog.log import EMBEDDED, Log
from streamlog.replace import replace
from streamlog.transport.security import Security
from streamlog.worker.process.arenas import use_huge_pages
from streamlog.worker.process.slots import Slot
from streamlog.worker.process.supervisor import Launch, Supervisor
from streamlog.worker.program import Program, WorkerStart
from streamlog.worker.topics.app_topics import declare_topics, ensure_topics
from streamlog.worker.topics.topic_schemas import registry_config
from streamlog.worker.worker import Worker
from streamlog.worker.worker_sites import ConnectSite, ConsoleSite

AUTO = "auto"
WORKERS_MAX = 256
LOOK_MS = 500
"""How often a supervisor checks that the directory of its embedded log still exists."""
CGROUPS = Path("/sys/fs/cgroup")


def run_workers(
    program: Program,
    given: str | None,
    *,
    log_url: str,
    security: Security,
    banner: Callable[[WorkerStart], None],
) -> None:
    """Run a worker in this process, or a supervisor with several, until a signal.

    Args:
        program: what workers run.
        given: the value of `-w`; None without the option.
        log_url: the log.
        security: the settings for connections to its brokers.
        banner: prints what a worker runs, once it has started.

    Raises:
        UsageError: the value of `-w` is neither a number in range nor `auto`.
    """
    slot = my_slot()
    if slot is None and given is not None:
        supervise(program, processes_of(given), log_url=log_url, security=security)
        typer.echo("stopped: everything is committed")
        return
    if slot is not None and program.web is not None:
        program = replace(program, web=slot_address(program.web, slot))
    # The workers of a supervisor are alike, so only the first one prints the banner.
    prints_banner = slot is None or (slot.is_first and slot.number == 1)
    running = Worker(
        program,
        log_url=log_url,
        announce=banner if prints_banner else _print_address,
        security=security,
        instance_id=None if slot is None else slot.instance_id,
        connect_site=_connect_site(program),
        console_site=_console_site(program, security),
        show_restores=partial(shown_restores, clock=SystemClock()),
    )
    # After the app was imported and the worker created, so that `gc.freeze` covers their objects.
    collect_rarely()
    keep_freed_memory()
    use_huge_pages()
    if slot is None:
        serve(running.run, "finishing, committing and leaving the group")
        typer.echo("stopped: everything is committed")
    else:
        serve(partial(serve_until_orphaned, slot, running.run), "")


def _console_site(program: Program, security: Security) -> ConsoleSite | None:
    """Return what makes the console; None without an HTTP server."""
    if program.web is None:
        return None
    try:
        from streamlog.console.worker_console.worker_site import (  # noqa: PLC0415 - an optional extra
            site_of,
        )
    except ModuleNotFoundError:
        # The worker says which extra its HTTP server needs.
        return None
    return partial(site_of, security=security)


def _connect_site(program: Program) -> ConnectSite | None:
    """Return what makes the REST API of the app's connectors; None without any, or without HTTP."""
    if not program.connectors or program.web is None:
        return None
    try:
        from streamlog.connect_service.rest_site import (  # noqa: PLC0415 - an optional extra
            site_of,
        )
    except ModuleNotFoundError:
        # The worker says which extra its HTTP server needs.
        return None
    return site_of


def processes_of(given: str) -> int:
    """Return the number of processes that `-w` asks for, 1 to `WORKERS_MAX`.

    Raises:
        UsageError: the value is neither a number in range nor `auto`.
    """
    if given == AUTO:
        return min(available_cores(), WORKERS_MAX)
    if not given.isdecimal() or not 1 <= int(given) <= WORKERS_MAX:
        raise UsageError(f"-w takes a number from 1 to {WORKERS_MAX}, or {AUTO}, not {given!r}")
    return int(given)


def available_cores() -> int:
    """Return how many cores this process may use, by its affinity and its control group's quota."""
    cores = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with suppress(OSError):
        path = Path("/proc/self/cgroup").read_text()
        cores = min(cores, quota(path, CGROUPS))
    return max(int(cores), 1)


def quota(membership: str, cgroups: Path) -> float:
    """Return how many cores' worth of time the control groups allow; infinite without a limit.

    Args:
        membership: the text of /proc/self/cgroup.
        cgroups: where the hierarchy of control groups is mounted.
    """
    least = float("inf")
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one hierarchy and names no controllers, version 1 has one per controller.
        root = cgroups if not controllers else cgroups / "cpu"
        own = root / path.lstrip("/")
        # The tightest limit between this group and the root applies.
        for group in [own, *own.parents]:
            if group == root.parent:
                break
            least = min(least, _quota_of(group))
    return least


def _quota_of(group: Path) -> float:
    """Return one group's quota in cores: version 2 has it in one file, version 1 in two."""
    # Without a limit, the file has "max", which is no number. The files below don't exist then.
    with suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()
        return int(limit) / int(period)
    with suppress(OSError, ValueError):
        limit = (group / "cpu.cfs_quota_us").read_text()
        period = (group / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else float("inf")
    return float("inf")


def supervise(program: Program, processes: int, *, log_url: str, security: Security | None) -> None:
    """Run this process's command in `processes` child processes, until a signal."""
    # The supervisor runs the broker of an embedded log, so it also serves its registry.
    config = registry_config(program.schema_registry, program.topics, embedded=log_url)

    supervise_processes(
        processes,
        lambda: Log.open(log_url, security=security, config=config),
        partial(prepare_topics, program, is_embedded=log_url.startswith(EMBEDDED)),
    )


async def prepare_topics(program: Program, log: Log, *, is_embedded: bool) -> None:
    """Make the topics of a program before its workers start, so that one process reports faults.

    Raises:
        UnknownTopicOrPartition: a topic of a log that is not embedded is missing.
        TopologyError: partition counts contradict each other, or the existing state.
    """
    required = () if is_embedded else program.sources
    if program.patterns:
        # The topology's own topics follow from those that match, and the workers find these.
        await declare_topics(log, program.topics, required=required)
    else:
        await ensure_topics(log, program.topology, program.topics, required=required)


def supervise_processes(
    processes: int,
    open_log: Callable[[], Log],
    prepare: Callable[[Log], Awaitable[None]],
) -> None:
    """Run this process's command in `processes` child processes, until a signal.

    Args:
        processes: how many.
        open_log: opens the log, which runs here if it is embedded.
        prepare: awaited with the log before a process is started.
    """
    # Children inherit `ours` and read it. Only this process has `theirs`, so they notice its end.
    ours, theirs = os.pipe()
    launch = Launch(
        command=[sys.executable, *sys.orig_argv[1:]],
        environment={**os.environ},
        alive_fd=ours,
    )
    supervisors: list[Supervisor] = []

    async def main(stop: asyncio.Event) -> None:
        supervisor = Supervisor(
            launch,
            processes=processes,
            out=printer(sys.stdout.buffer),
            err=printer(sys.stderr.buffer),
        )
        supervisors.append(supervisor)
        async with open_log() as log, asyncio.TaskGroup() as group:
            await prepare(log)
            watch = group.create_task(_watch(log))
            await supervisor.run(stop)
            watch.cancel()

    def at_once() -> None:
        for supervisor in supervisors:
            supervisor.kill()

    try:
        serve(main, "the workers finish, commit and leave the group", at_once=at_once)
    finally:
        os.close(ours)
        os.close(theirs)


def _print_address(start: WorkerStart) -> None:
    """Print a worker's HTTP address: all that differs between the workers of a supervisor."""
    if start.web is not None:
        typer.echo(f"web       {start.program.web_access.scheme}://{start.web}")


def slot_address(address: str, slot: Slot) -> str:
    """Return a slot's HOST:PORT: slots count up from the given port; port 0 stays 0."""
    host, colon, port = address.rpartition(":")
    if not port.isdecimal() or int(port) == 0:
        return address
    return f"{host}{colon}{int(port) + slot.number - 1}"


async def _watch(log: Log) -> None:
    """Raise once the directory of an embedded log has vanished: a supervisor never writes to it."""
    while True:
        log.check()
        await asyncio.sleep(LOOK_MS / 1000)


StateLossOption = Annotated[
    bool,
    typer.Option(
        "--accept-state-loss",
        help="Start even if the changed app can't use part of its state, and drop that part.",
    ),
]
ContractBreaksOption = Annotated[
    bool,
    typer.Option(
        "--accept-contract-breaks",
        help="Start even if the types of other apps no longer fit: see `contracts check`.",
    ),
]

SourceLostOption = Annotated[
    Literal["fail", "earliest", "latest"] | None,
    typer.Option(
        "--source-lost",
        help="What to do if a topic was created again or its log truncated since it was read."
        " Overrides the app and its topics.",
    ),
]
WorkersOption = Annotated[
    str | None,
    typer.Option(
        "-w",
        "--workers",
        metavar="N|auto",
        help="Number of worker processes under a supervisor; auto: one per core.",
    ),
]
WebUsersOption = Annotated[
    Path | None,
    typer.Option(
        "--web-users",
        metavar="FILE",
        help="Require a password of a user in this file: see `streamlog users add --file`.",
    ),
]
WebCertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--web-certificate", metavar="PEM", help="Serve HTTPS with this key and certificate."
    ),
]
WebAuthoritiesOption = Annotated[
    Path | None,
    typer.Option(
        "--web-ca", metavar="PEM", help="The authorities of the other workers' certificates."
    ),
]
WebInsecureOption = Annotated[
    bool,
    typer.Option("--web-insecure", help="Let other machines in without a password or without TLS."),
]

WebOperatorsOption = Annotated[
    str | None,
    typer.Option(
        "--web-operators",
        metavar="NAMES",
        help="The users that may change something on the console, separated by commas.",
    ),
]


def worker(
    context: typer.Context,
    *,
    accept_state_loss: StateLossOption = False,
    accept_contract_breaks: ContractBreaksOption = False,
    source_lost: SourceLostOption = None,
    log: LogOption = None,
    web: WebOption = None,
    web_users: WebUsersOption = None,
    web_certificate: WebCertificateOption = None,
    web_ca: WebAuthoritiesOption = None,
    web_insecure: WebInsecureOption = False,
    web_operators: WebOperatorsOption = None,
    version_name: Annotated[
        str | None,
        typer.Option(
            "--version", metavar="NAME", help="Run this version beside the app: see `hand-over`."
        ),
    ] = None,
    workers: WorkersOption = None,
) -> None:
    """Run the app's tasks, agents and schedules until Ctrl-C.

    The first Ctrl-C commits and leaves the group. The second stops at once.
    """
    session: Session = context.obj
    app = session.require_app()
    with log_warnings():
        program = replace(
            app.program(),
            accept_state_loss=accept_state_loss,
            accept_contract_breaks=accept_contract_breaks,
        )
    if source_lost is not None:
        program = program.with_source_lost(source_lost)
    if version_name is not None:
        program = program.as_version(version_name)
    if web is not None:
        program = replace(program, web=web)
    access = program.web_access
    access = replace(
        access,
        users_file=access.users_file if web_users is None else str(web_users),
        certificate=access.certificate if web_certificate is None else str(web_certificate),
        ca=access.ca if web_ca is None else str(web_ca),
        is_insecure=access.is_insecure or web_insecure,
        operators=access.operators if web_operators is None else web_operators,
    )
    program = replace(program, web_access=access)
    run_workers(
        program, workers, log_url=session.log_url(log), security=session.security(), banner=_banner
    )


def _format_address(start: WorkerStart) -> str:
    address = start.log.address
    at = "" if address is None else f", on {address[0]}:{address[1]}"
    where = "in this process" if start.log.is_embedded else "in another process"
    return f"{start.log_url} {where}{at}, cluster {start.log.cluster_id}"


def describe_source(source: SourceConnector) -> str:
    """Return a source's topics and what it promises, for the banner."""
    topics = ", ".join(spec.name for spec in source.topics.values())
    promise = source.source.guarantee.replace("_", " ")
    return f"{source.name}: {type(source.source).__name__} to {topics}, {promise}"


def describe_sink(sink: SinkConnector) -> str:
    """Return a sink's topics and what it promises, for the banner."""
    topics = ", ".join(spec.name for spec in sink.topics)
    promise = "at least once" if sink.sink.effect == "appending" else "exactly once"
    return f"{sink.name}: {topics} to {type(sink.sink).__name__}, {promise}"


def only_carried(program: Program) -> set[str]:
    """Return the topics that sinks carry outside and other programs write."""
    carried = {spec.name for each in program.sink_connectors for spec in each.topics}
    topics = program.contract.topics
    # Of a topic without a writer in the code, the contract says that the app as a whole writes it.
    return {name for name in carried & topics.keys() if topics[name].written_by == [program.app_id]}


def describe_tasks(start: WorkerStart) -> str:
    """Return how many tasks there are; or, as newcomers wait for output of it, that all is idle."""
    program = start.program
    if start.tasks:
        return f"{start.tasks}, shared by all workers of the app"
    others = (
        program.agents, program.timers, program.crontabs, program.tasks,
        program.source_connectors, program.sink_connectors, start.web,
    )  # fmt: skip
    return "" if any(others) else "none: the app has no stream, agent, or timer yet"


def _banner(start: WorkerStart) -> None:
    """Print what the worker runs, and on which log."""
    program, counts = start.program, start.counts
    written = sorted(counts.keys() - {*program.sources} - only_carried(program))
    schedules = [timer.name for timer in program.timers]
    schedules += [crontab.name for crontab in program.crontabs]
    rows = {
        "app": program.app_id,
        "log": _format_address(start),
        "topology": version(start.change) if start.change.blueprint.is_recorded else "",
        "state": program.state_path,
        "reads": ", ".join(f"{name} ({counts[name]})" for name in program.sources),
        "writes": ", ".join(f"{name} ({counts[name]})" for name in written),
        "sources": "; ".join(map(describe_source, program.source_connectors)),
        "sinks": "; ".join(map(describe_sink, program.sink_connectors)),
        "tasks": describe_tasks(start),
        "agents": ", ".join(agent.name for agent in program.agents),
        "schedules": ", ".join(schedules),
        "once": ", ".join(service.name for service in program.tasks),
        "web": "" if start.web is None else f"{program.web_access.scheme}://{start.web}",
    }
    console = out(markup=True)
    for what, text in rows.items():
        if text:
            console.print(f"[bold]{what:<10}[/bold]{escape(text)}", soft_wrap=True)
        if what == "topology":
            print_difference(start.change)
