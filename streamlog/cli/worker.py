"""`streamlog worker`: an app's tasks, agents and schedules, until Ctrl-C."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import typer
from rich.markup import escape

from streamlog.cli.session import LogOption, Session, WebOption
from streamlog.cli.terminal import out, warnings_logged
from streamlog.cli.topology import print_difference, version
from streamlog.cli.workers import run_workers
from streamlog.worker.program import Start


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
    app = session.the_app()
    with warnings_logged():
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


def _where(start: Start) -> str:
    address = start.log.address
    at = "" if address is None else f", on {address[0]}:{address[1]}"
    whose = "in this process" if start.log.is_embedded else "of another process"
    return f"{start.log_url} {whose}{at}, cluster {start.log.cluster_id}"


def _banner(start: Start) -> None:
    """What the worker runs, and on what."""
    program, counts = start.program, start.counts
    written = sorted(counts.keys() - {*program.sources})
    schedules = [timer.name for timer in program.timers]
    schedules += [crontab.name for crontab in program.crontabs]
    rows = {
        "app": program.app_id,
        "log": _where(start),
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
