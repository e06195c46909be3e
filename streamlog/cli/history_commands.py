"""The commands about an app's history: `backfill`, `compare`, `hand-over`, `promote`."""

from __future__ import annotations

import json
from enum import StrEnum
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.session import LogOption, Session, run
from streamlog.cli.terminal import JsonOption, log_warnings, say
from streamlog.durations import duration_ms, moment
from streamlog.errors import TopologyError, UsageError, quantity
from streamlog.interrupts import interruptible
from streamlog.metrics.build_info import install_command

if TYPE_CHECKING:
    from streamlog.app import App
    from streamlog.dsl.topic import Topic
    from streamlog.history.comparison import Comparison, Inputs, PartitionComparison
    from streamlog.history.live_comparison import LiveComparison, LivePartition
    from streamlog.history.readers import LogReader
    from streamlog.nodes.topic_spec import TopicSpec
    from streamlog.snapshots.snapshot import Snapshot
    from streamlog.worker.program import Program

EXIT_DIFFERENT = 1
BRIDGE = "spark_bridge"
"""Imported by name: the package doesn't depend on its Spark extra."""
SnapshotArgument = Annotated[
    str,
    typer.Argument(
        metavar="SNAPSHOT", help="The snapshot's ID, or the path or URL of its directory."
    ),
]


DirectoryOption = Annotated[
    str | None, typer.Option("--at", metavar="DIR|URL", help="The directory of snapshots.")
]
InputsOption = Annotated[
    bool,
    typer.Option(help="Show the input records of rows that differ; runs the history once more."),
]


ComparedVersion = Annotated[
    str | None,
    typer.Option("--version", metavar="NAME", help="Compare a version that runs beside the app."),
]
ComparedSince = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="With --version: compare rows from this time on."),
]
ComparedPatience = Annotated[
    str,
    typer.Option(
        "--patience", metavar="TIME", help="With --version: how long to wait for a side that lags."
    ),
]


class Engine(StrEnum):
    """The engines that run a history."""

    LOCAL = "local"
    SPARK = "spark"


EngineOption = Annotated[
    Engine,
    typer.Option("--engine", help="Run in this process, or in Spark on all cores of this machine."),
]
MasterOption = Annotated[
    str | None,
    typer.Option("--master", metavar="URL", help="Spark's master: spark://HOST:PORT, local[4]."),
]


class Lower(StrEnum):
    """Whether Spark aggregates windows with operators of its own."""

    AUTO = "auto"
    OFF = "off"


LowerOption = Annotated[
    Lower,
    typer.Option(
        "--lower",
        help="Let Spark's operators aggregate windows where the rows are identical, or never.",
    ),
]


class RowsOf(StrEnum):
    """What happens to a history's output rows."""

    DISCARD = "discard"
    STAGE = "stage"


@interruptible()
def backfill(
    context: typer.Context,
    *,
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="Where streams start.")
    ] = "earliest",
    until: Annotated[
        str, typer.Option("--until", metavar="TIME", help="Where the history ends.")
    ] = "now",
    outputs: Annotated[
        RowsOf,
        typer.Option("--outputs", help="Drop the output rows, or stage them with the snapshot."),
    ] = RowsOf.STAGE,
    engine: EngineOption = Engine.LOCAL,
    master: MasterOption = None,
    lower: LowerOption = Lower.AUTO,
    job_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="ID", help="ID of the job and its snapshot. Default: a new one."
        ),
    ] = None,
    directory: DirectoryOption = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the plan and run nothing.")
    ] = False,
    log: LogOption = None,
) -> None:
    """Run the app over what the log holds, up to one consistent cut, and write a snapshot."""
    app = _app_of(context, log)
    with log_warnings():
        job = app.backfill(
            since=since,
            until=until,
            # `--master` implies Spark.
            engine="local" if engine is Engine.LOCAL and master is None else "spark",
            spark=None if master is None else _session(app, master),
            outputs="stage" if outputs is RowsOf.STAGE else "discard",
            job_id=job_id,
            directory=directory,
            lower="auto" if lower is Lower.AUTO else "off",
        )
    say(job.explain())
    if explain:
        return
    snapshot = job.run()
    manifest = snapshot.manifest
    tasks, rows = quantity(len(manifest.tasks), "task"), quantity(manifest.rows, "row")
    staged = quantity(sum(each.records for each in manifest.staged), "staged row")
    say(f"snapshot {snapshot.id}: {tasks}, {rows} of state, {staged} in {snapshot.url}")


@interruptible()
def compare(
    context: typer.Context,
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="[SNAPSHOT] TOPIC",
            help="A snapshot (not with --version) and an output topic of the app.",
        ),
    ],
    *,
    version: ComparedVersion = None,
    since: ComparedSince = None,
    patience: ComparedPatience = "30s",
    directory: DirectoryOption = None,
    inputs: InputsOption = True,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Compare the staged rows of a history, or the rows of a version, with the app's rows.

    Exits with 1 if they differ.
    """
    # A history takes one snapshot before the topic, a version none: True counts as 1.
    *snapshot, topic = given
    if len(snapshot) != (version is None):
        raise UsageError(
            "compare takes SNAPSHOT TOPIC to compare a history, or TOPIC --version NAME"
        )
    app = _app_of(context, log)
    spec = app.topics.get(topic)
    if spec is None:
        raise UsageError(
            f"app {app.id!r} has no topic {topic!r}; its topics: {', '.join(app.topics)}"
        )
    comparison: Comparison | LiveComparison
    if version is None:
        staged = _snapshot(app, snapshot[0], directory)
        comparison = _compare_staged(app, spec, staged, inputs=inputs)
        _note(comparison, staged)
    else:
        found = _topic(app, spec)
        with log_warnings(), progress_bar(f"comparing {topic}"):
            comparison = app.compare(found, version=version, since=since, patience=patience)
    if as_json:
        typer.echo(json.dumps(_comparison_object(comparison), ensure_ascii=False))
    else:
        say(str(comparison))
    if not comparison:
        raise typer.Exit(EXIT_DIFFERENT)


def _comparison_object(found: Comparison | LiveComparison) -> dict[str, object]:
    """Return a comparison as JSON; rows stand as the report shows them, decoded."""
    partitions = [_partition_object(each) for each in found.partitions]
    return {"topic": found.topic, "is_equal": found.is_equal, "partitions": partitions}


def _partition_object(found: PartitionComparison | LivePartition) -> dict[str, object]:
    from streamlog.history.live_comparison import LivePartition  # noqa: PLC0415 - as above

    fields = msgspec.structs.asdict(found)
    counts = {name: value for name, value in fields.items() if isinstance(value, int)}
    if isinstance(found, LivePartition):
        return {**counts, "differences": found.shown}
    return {
        **counts,
        "differences": [
            {"is_staged": each.is_staged, "row": each.text, "inputs": each.inputs}
            for each in found.differences
        ],
    }


def _compare_staged(app: App, spec: TopicSpec, snapshot: Snapshot, *, inputs: bool) -> Comparison:
    from streamlog.history.comparison import compare_topic  # noqa: PLC0415 - other commands start faster
    from streamlog.history.readers import LogReader  # noqa: PLC0415 - the same

    with progress_bar(f"comparing {spec.name}"), LogReader(app.log, app.security) as reader:
        led = _inputs_of(app, snapshot, spec, reader) if inputs else None
        return compare_topic(_topic(app, spec), snapshot, reader, led)


def _note(comparison: Comparison, snapshot: Snapshot) -> None:
    from streamlog.clock import SystemClock  # noqa: PLC0415 - other commands start faster
    from streamlog.snapshots import SnapshotStore  # noqa: PLC0415 - the same
    from streamlog.snapshots.noted_jobs import JobNotes  # noqa: PLC0415 - the same

    # The notes lie beside the snapshot, for the console.
    store = SnapshotStore(snapshot.url.rpartition("/")[0] or ".")
    JobNotes(store).compared(snapshot.id, comparison.note(SystemClock().wall_ms()))


def _topic(app: App, spec: TopicSpec) -> Topic[Any, Any]:
    from streamlog.dsl.topic import Topic  # noqa: PLC0415 - other commands start faster

    return Topic(spec, app.runtime)


def _inputs_of(app: App, snapshot: Snapshot, topic: TopicSpec, reader: LogReader) -> Inputs | None:
    """Return what finds the input records of rows; None if the program has changed too much."""
    from streamlog.clock import SystemClock  # noqa: PLC0415 - other commands start faster
    from streamlog.history.lineage import inputs_by  # noqa: PLC0415 - the same
    from streamlog.history.plan import planned_again  # noqa: PLC0415 - the same

    with log_warnings():
        program = app.program()
    try:
        plan = planned_again(program.topology, reader.partitions(), snapshot.manifest)
    except TopologyError as error:
        say(f"the input records of rows are not shown: {error}")
        return None
    if plan is None:
        return None
    return inputs_by(plan, reader, topic, program, now_ms=SystemClock().wall_ms())


@interruptible()
def hand_over(
    context: typer.Context,
    snapshot: SnapshotArgument,
    *,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            metavar="NAME",
            help="Hand over to a version; the app's workers keep running.",
        ),
    ] = None,
    rewind: Annotated[
        bool,
        typer.Option(
            "--rewind",
            help="Allow it although the app has read further: it writes those rows again.",
        ),
    ] = False,
    directory: DirectoryOption = None,
    log: LogOption = None,
) -> None:
    """Let the app's workers start from a snapshot; stop them first. Can be repeated."""
    app = _app_of(context, log)
    with log_warnings():
        done = app.hand_over(
            _snapshot(app, snapshot, directory),
            version=version,
            mode="replace" if version is None else "blue_green",
            rewind=rewind,
        )
    if done.is_repeated:
        say(f"{done.app_id} already starts from snapshot {done.snapshot}: nothing was changed")
        return
    say(
        f"{done.app_id} starts from snapshot {done.snapshot}, with {quantity(done.rows, 'row')} of "
        f"state; start its workers{'' if version is None else f': worker --version {version}'}"
    )
    for (topic, partition), offset in sorted(done.offsets.items()):
        say(f"  {topic}-{partition} from offset {offset}")


def _session(app: App, master: str) -> object:
    """Return a Spark session on a cluster.

    Raises:
        UsageError: Spark is not installed.
        ConfigError: no cluster answers at `master`.
    """
    try:
        bridge = import_module(BRIDGE)
    except ImportError as error:
        raise UsageError(f"Spark is not installed ({error}): {install_command('spark')}") from error
    session: object = bridge.session(f"history of {app.id}", master)
    return session


def promote(
    context: typer.Context,
    version: Annotated[
        str | None,
        typer.Argument(
            metavar="[VERSION]", help="A version that runs beside the app: see `hand-over`."
        ),
    ] = None,
    *,
    undo: Annotated[
        bool,
        typer.Option(
            "--undo", help="Make the program from before the last promotion the app again."
        ),
    ] = False,
    cancel: Annotated[
        bool,
        typer.Option(
            "--cancel", help="Cancel a promotion that was killed; workers continue as before."
        ),
    ] = False,
    patience: Annotated[
        str,
        typer.Option("--patience", metavar="TIME", help="How long to wait for the workers."),
    ] = "10m",
    directory: DirectoryOption = None,
    log: LogOption = None,
) -> None:
    """Make a version the app, at one cut at which its workers and the app's pause.

    -A names the version's module; with --undo, the module of the program from before.
    """
    if (version is not None) + undo + cancel != 1:
        raise UsageError("promote takes one of VERSION, --undo and --cancel")
    app = _app_of(context, log)
    snapshots_url = directory or _default_snapshots_url(app)
    with log_warnings():
        program = app.program()
    run(_promote(app, program, version, snapshots_url, duration_ms(patience), is_cancelled=cancel))


async def _promote(
    app: App,
    program: Program,
    version: str | None,
    snapshots_url: str,
    patience_ms: int,
    *,
    is_cancelled: bool,
) -> None:
    from streamlog.log import Log  # noqa: PLC0415 - other commands start faster
    from streamlog.worker.operations import promotion  # noqa: PLC0415 - the same

    async with Log.open(app.log, security=app.security) as log:
        stage = promotion.PromotionStage(
            log=log,
            log_url=app.log,
            snapshots_url=snapshots_url,
            security=app.security,
            patience_ms=patience_ms,
            on_step=say,
        )
        if is_cancelled:
            was_there = await promotion.cancel(program, stage)
            say("cancelled: workers continue" if was_there else "no promotion is in progress")
            return
        if version is None:
            done = await promotion.take_back(program, stage)
        else:
            done = await promotion.promote(program, version, stage)
    say(
        f"version {done.version!r} is app {done.app_id!r} from {moment(done.cut_ms).isoformat()} "
        f"on, with {quantity(done.rows, 'row')} of state: stop the workers of the previous program "
        "and start those of this one"
    )
    say(f"to undo, with the module of the previous program: promote --undo (needs {done.before})")


def _app_of(context: typer.Context, log: str | None) -> App:
    session: Session = context.obj
    app = session.require_app()
    app.log, app.security = session.log_url(log), session.security()
    return app


def _snapshot(app: App, given: str, directory: str | None) -> Snapshot:
    from streamlog.snapshots import Snapshot  # noqa: PLC0415 - as above

    if "/" in given:
        return Snapshot.open(given)
    return Snapshot.open(f"{directory or _default_snapshots_url(app)}/{given}")


def _default_snapshots_url(app: App) -> str:
    from streamlog.snapshots import default_snapshot_store  # noqa: PLC0415 - as above

    return app.histories or default_snapshot_store(app.log, app.state_dir)
