"""The commands that work on an app or on a log by URL, and `main`, which runs them all.

A shell around rooms below: it reads arguments, sets up logging, turns the first Ctrl-C into
a request to stop and the second into an end, and errors into one clear line and an exit code
(`docs/cli.md`). No domain decision is taken here.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.markup import escape

from streamlog.app import App
from streamlog.assignors import TopicPartition
from streamlog.cli.acls import acls
from streamlog.cli.app_commands import WithAppCommands
from streamlog.cli.broker import broker
from streamlog.cli.cluster import cluster
from streamlog.cli.configs import configs
from streamlog.cli.dev import dev
from streamlog.cli.dlq import dlq
from streamlog.cli.doctor import doctor
from streamlog.cli.groups import groups
from streamlog.cli.history import backfill, compare, hand_over, promote
from streamlog.cli.log import log_commands
from streamlog.cli.quotas import quotas
from streamlog.cli.running import EXIT_STOPPED_AT_ONCE, run, serve
from streamlog.cli.session import LogOption, Session, WebOption, load_app
from streamlog.cli.terminal import fail, first_of, out, set_up_logging, text_of, warnings_logged
from streamlog.cli.topics import partitions_of, topics
from streamlog.cli.topology import print_difference, topology, version
from streamlog.cli.users import users
from streamlog.errors import (
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.records.batch import Record
from streamlog.serdes import Serde, from_text
from streamlog.topology import TopicSpec

if TYPE_CHECKING:
    from streamlog.worker.program import Start

EXIT_BUG = 1
DEFAULT_LOG = "embedded:./.streamlog/log"
POLL_MS = 200


T = TypeVar("T")
"""What a command's coroutine returns."""

cli = typer.Typer(
    name="streamlog",
    cls=WithAppCommands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cli.add_typer(topics, name="topics")
cli.add_typer(configs, name="configs")
cli.add_typer(groups, name="groups")
cli.add_typer(log_commands, name="log")
cli.add_typer(users, name="users")
cli.add_typer(acls, name="acls")
cli.add_typer(quotas, name="quotas")
cli.add_typer(dlq, name="dlq")
cli.add_typer(cluster, name="cluster")


@cli.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    app: Annotated[
        str | None,
        typer.Option("-A", "--app", metavar="MODULE[:APP]", help="The app's module, as imported."),
    ] = None,
    *,
    security: Annotated[
        Path | None,
        typer.Option(
            "--security",
            metavar="FILE",
            envvar="STREAMLOG_SECURITY",
            help="Settings for brokers with TLS or SASL, such as security.protocol=SASL_SSL.",
        ),
    ] = None,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Log everything, commits included.")
    ] = False,
) -> None:
    """Stream processing on a log that speaks the Kafka protocol."""
    set_up_logging(verbose=verbose)
    session = context.ensure_object(Session)
    session.security_file = None if security is None else str(security)
    if app is not None:
        session.app = load_app(app)
    if context.invoked_subcommand is None and session.app is not None:
        worker(context)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


@cli.command()
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
    from streamlog.cli.workers import run_workers  # noqa: PLC0415 - the other commands start faster

    session: Session = context.obj
    app = session.the_app()
    with warnings_logged():
        program = replace(app.program(), accept_state_loss=accept_state_loss)
    if version_name is not None:
        program = program.beside(version_name)
    if web is not None:
        program = replace(program, web=web)
    run_workers(
        program, workers, log_url=session.log_url(log), security=session.security(), banner=_banner
    )


cli.command()(broker)
cli.command()(dev)


@cli.command()
def send(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic of the app.")],
    value: Annotated[str, typer.Argument(help="Plain text for str, bytes and numbers, else JSON.")],
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Likewise.")] = None,
    log: LogOption = None,
) -> None:
    """Send one record to a topic of the app, checked against the topic's types."""
    from streamlog.worker.topics import declare_topics  # noqa: PLC0415 - the others start faster

    session: Session = context.obj
    app = session.the_app()
    spec = app.topics.get(topic)
    if spec is None:
        declared = ", ".join(sorted(app.topics)) or "none"
        raise UnknownTopicOrPartition(
            f"app {app.id!r} declares no topic {topic!r}; its topics: {declared}"
        )
    value_bytes = encode(spec.value, value)
    key_bytes = None if key is None else encode(spec.key, key)

    async def main() -> None:
        async with session.open(log, create=True) as opened:
            await declare_topics(opened, {topic: spec})
            async with opened.producer() as producer:
                sent = await (await producer.send(topic, value_bytes, key=key_bytes))
        typer.echo(f"sent to {sent.topic}, partition {sent.partition}, offset {sent.offset}")

    run(main())


@cli.command()
def consume(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="Any topic of the log.")],
    *,
    from_beginning: Annotated[
        bool, typer.Option("--from-beginning", help="Not only what comes from now on.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Print keys and values of a topic until Ctrl-C; with -A decoded, else as text."""
    session: Session = context.obj
    spec = None if session.app is None else session.app.topics.get(topic)

    async def main(stop: asyncio.Event) -> None:
        async with session.open(log) as opened:
            parts = await partitions_of(opened, topic)
            async with opened.consumer(auto_offset_reset="latest") as consumer:
                consumer.assign(parts)
                if from_beginning:
                    await consumer.seek_to_beginning(*parts)
                while not stop.is_set():
                    _show(await consumer.poll(timeout_ms=POLL_MS), spec)

    serve(main, "closing")


cli.command()(topology)
cli.command()(backfill)
cli.command()(compare)
cli.command()(hand_over)
cli.command()(promote)
cli.command()(doctor)


def main(app: App | None = None) -> NoReturn:
    """Run the command line and exit; with an app, `-A` is given and the default is `worker`."""
    try:
        cli(obj=Session(app))
    except KeyboardInterrupt:
        sys.exit(EXIT_STOPPED_AT_ONCE)
    except BaseExceptionGroup as group:
        fail(first_of(group))
    except StreamlogError as error:
        fail(error)
    sys.exit(0)


def encode(serde: Serde[Any], text: str) -> bytes:
    """The bytes of a value typed on the command line.

    Text stands for itself where the type is text, bytes or a number; otherwise it is JSON,
    which is read and written again, so that what does not fit is refused here.

    Raises:
        SerdeError: the text does not fit the type.
    """
    return serde.dumps(from_text(serde, text))


def _show(polled: Mapping[TopicPartition, Sequence[Record]], spec: TopicSpec | None) -> None:
    for records in polled.values():
        for record in records:
            typer.echo(shown(record, spec))


def shown(record: Record, spec: TopicSpec | None) -> str:
    """One record as a line: key, tab, value."""
    key, value = (None, None) if spec is None else (spec.key, spec.value)
    return f"{_text(record.key, key)}\t{_text(record.value, value)}"


def _text(data: bytes | None, serde: Serde[Any] | None) -> str:
    return text_of(data) if data is None or serde is None else str(serde.loads(data))


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
    console = out()
    for what, text in rows.items():
        if text:
            console.print(f"[bold]{what:<10}[/bold]{escape(text)}", soft_wrap=True)
        if what == "topology":
            print_difference(start.change)
