"""`streamlog worker`: an app's tasks, agents and schedules, until Ctrl-C, in one or more processes.

With `-w N|auto` a supervisor starts the workers. It runs the embedded log, if the app has one, so
that the end of a worker does not end the log. A process that finds a slot in its environment is a
worker of a supervisor: a static member, and silent unless it is the first of the first slot.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.markup import escape

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
from streamlog.errors import UsageError
from streamlog.log import EMBEDDED, Log
from streamlog.transport.security import Security
from streamlog.worker.process.arenas import use_huge_pages
from streamlog.worker.process.slots import Slot
from streamlog.worker.process.supervisor import Launch, Supervisor
from streamlog.worker.program import Program, WorkerStart
from streamlog.worker.topics.app_topics import ensure_topics
from streamlog.worker.worker import Worker

AUTO = "auto"
WORKERS_MAX = 256
LOOK_MS = 500
"""How long a directory of an embedded log that has vanished goes unnoticed."""
CGROUPS = Path("/sys/fs/cgroup")


def run_workers(
    program: Program,
    given: str | None,
    *,
    log_url: str,
    security: Security,
    banner: Callable[[WorkerStart], None],
) -> None:
    """Be the worker, or the supervisor of as many as are `given`, until a signal ends it.

    Args:
        program: what workers run.
        given: what `-w` says; None without it.
        log_url: the log.
        security: how its brokers are talked to.
        banner: prints what a worker runs.

    Raises:
        UsageError: `-w` makes no sense.
    """
    slot = my_slot()
    if slot is None and given is not None:
        supervise(program, processes_of(given), log_url=log_url, security=security)
        typer.echo("stopped: everything is committed")
        return
    if slot is not None and program.web is not None:
        program = replace(program, web=slot_address(program.web, slot))
    # A supervisor's workers are all alike: one of them says what it is.
    is_told = slot is None or (slot.is_first and slot.number == 1)
    running = Worker(
        program,
        log_url=log_url,
        announce=banner if is_told else _tell_address,
        security=security,
        instance_id=None if slot is None else slot.instance_id,
    )
    collect_rarely()
    keep_freed_memory()
    use_huge_pages()
    if slot is None:
        serve(running.run, "finishing, committing and leaving the group")
        typer.echo("stopped: everything is committed")
    else:
        serve(partial(serve_until_orphaned, slot, running.run), "")


def processes_of(given: str) -> int:
    """How many processes `-w` asks for.

    Raises:
        UsageError: it is neither a number that makes sense nor `auto`.
    """
    if given == AUTO:
        return min(available_cores(), WORKERS_MAX)
    if not given.isdecimal() or not 1 <= int(given) <= WORKERS_MAX:
        raise UsageError(f"-w is a number from 1 to {WORKERS_MAX}, or {AUTO}, not {given!r}")
    return int(given)


def available_cores() -> int:
    """Cores that this process may use: by its affinity, and by the quota of its control group."""
    cores = float(os.cpu_count() or 1)
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    with suppress(OSError):
        path = Path("/proc/self/cgroup").read_text()
        cores = min(cores, quota(path, CGROUPS))
    return max(int(cores), 1)


def quota(membership: str, cgroups: Path) -> float:
    """Cores' worth of time that control groups allow; infinite if they do not say.

    Args:
        membership: what /proc/self/cgroup says.
        cgroups: where the hierarchy of control groups is mounted.
    """
    least = float("inf")
    for line in membership.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        room = cgroups if not controllers else cgroups / "cpu"
        place = room / path.lstrip("/")
        for group in [place, *place.parents]:
            if group == room.parent:
                break
            least = min(least, _quota_of(group))
    return least


def _quota_of(group: Path) -> float:
    """Of one control group: version 2 has both figures in one file, version 1 in two."""
    with suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()
        return int(limit) / int(period)
    with suppress(OSError, ValueError):
        limit = (group / "cpu.cfs_quota_us").read_text()
        period = (group / "cpu.cfs_period_us").read_text()
        return int(limit) / int(period) if int(limit) > 0 else float("inf")
    return float("inf")


def supervise(program: Program, processes: int, *, log_url: str, security: Security | None) -> None:
    """Run the command of this process so many times, until a signal ends it."""
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
        async with Log.open(log_url, security=security) as log, asyncio.TaskGroup() as group:
            # Here what is missing is told once, and not by every worker.
            required = () if log_url.startswith(EMBEDDED) else program.sources
            await ensure_topics(log, program.topology, program.topics, required=required)
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


def _tell_address(start: WorkerStart) -> None:
    """All that differs between the workers of a supervisor."""
    if start.web is not None:
        typer.echo(f"web       http://{start.web}")


def slot_address(address: str, slot: Slot) -> str:
    """HOST:PORT for one of several: they count up from the port; 0 is a free one for each."""
    host, colon, port = address.rpartition(":")
    if not port.isdecimal() or int(port) == 0:
        return address
    return f"{host}{colon}{int(port) + slot.number - 1}"


async def _watch(log: Log) -> None:
    """See an embedded log's directory vanish, as nobody writes to it here."""
    while True:
        log.check()
        await asyncio.sleep(LOOK_MS / 1000)


def worker(
    context: typer.Context,
    *,
    accept_state_loss: Annotated[
        bool,
        typer.Option(
            "--accept-state-loss",
            help="Go on though the app has changed so that it can't use some of its state.",
        ),
    ] = False,
    source_lost: Annotated[
        Literal["fail", "earliest", "latest"] | None,
        typer.Option(
            "--source-lost",
            help="What to do if a topic was created again, or its log truncated, since it was read"
            " (instead of what the app and its topics say).",
        ),
    ] = None,
    log: LogOption = None,
    web: WebOption = None,
    version_name: Annotated[
        str | None,
        typer.Option(
            "--version", metavar="NAME", help="As a version beside the app: see `hand-over`."
        ),
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            "-w",
            "--workers",
            metavar="N|auto",
            help="So many worker processes under a supervisor; auto: one per core.",
        ),
    ] = None,
) -> None:
    """Run the app's tasks, agents and schedules until Ctrl-C.

    The first Ctrl-C commits and leaves the group, the second stops at once.
    """
    session: Session = context.obj
    app = session.require_app()
    with log_warnings():
        program = replace(app.program(), accept_state_loss=accept_state_loss)
    if source_lost is not None:
        program = program.with_source_lost(source_lost)
    if version_name is not None:
        program = program.beside(version_name)
    if web is not None:
        program = replace(program, web=web)
    run_workers(
        program, workers, log_url=session.log_url(log), security=session.security(), banner=_banner
    )


def _format_address(start: WorkerStart) -> str:
    address = start.log.address
    at = "" if address is None else f", on {address[0]}:{address[1]}"
    whose = "in this process" if start.log.is_embedded else "of another process"
    return f"{start.log_url} {whose}{at}, cluster {start.log.cluster_id}"


def _banner(start: WorkerStart) -> None:
    """What the worker runs, and on what."""
    program, counts = start.program, start.counts
    written = sorted(counts.keys() - {*program.sources})
    schedules = [timer.name for timer in program.timers]
    schedules += [crontab.name for crontab in program.crontabs]
    rows = {
        "app": program.app_id,
        "log": _format_address(start),
        "topology": version(start.change) if any(program.topology.nodes) else "",
        "state": program.state_path,
        "reads": ", ".join(f"{name} ({counts[name]})" for name in program.sources),
        "writes": ", ".join(f"{name} ({counts[name]})" for name in written),
        "tasks": f"{start.tasks}, shared by all workers of the app" if start.tasks else "",
        "agents": ", ".join(agent.name for agent in program.agents),
        "schedules": ", ".join(schedules),
        "once": ", ".join(service.name for service in program.tasks),
        "web": "" if start.web is None else f"http://{start.web}",
    }
    console = out(markup=True)
    for what, text in rows.items():
        if text:
            console.print(f"[bold]{what:<10}[/bold]{escape(text)}", soft_wrap=True)
        if what == "topology":
            print_difference(start.change)
