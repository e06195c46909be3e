"""The commands about what an app has stored: `streamlog state` and `streamlog reset`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.cli.output.plain_text import one_line
from streamlog.cli.output.progress_bar import progress_bar
from streamlog.cli.session import COMPLETION_S, LogOption, Session, with_log
from streamlog.cli.terminal import log_warnings, out, say
from streamlog.client.offset_targets import Target, at_offset, at_time, latest
from streamlog.clock import SystemClock
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, StreamlogError, UsageError

if TYPE_CHECKING:
    from streamlog.log import Log
    from streamlog.snapshots.state_reader import StateDifference, StoredRow, StoredTask
    from streamlog.snapshots.store_types import StoreTypes
    from streamlog.worker.operations.app_reset import ResetPlan

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
STAYS: Final = (
    "input and output topics, dead letters, runs of schedules, positions of connectors, snapshots"
)

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def reset(
    context: typer.Context,
    *,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|N|TIME",
            help="Where the app reads its sources again: an offset, or a time with a time zone.",
        ),
    ] = EARLIEST,
    execute: Annotated[
        bool, typer.Option("--execute/--dry-run", help="Reset the app, or only show the plan.")
    ] = False,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Remove what the app has stored, so that it starts over; without --execute, only show it.

    Stop the app's workers first. Example: streamlog -A shop reset --to 2026-11-01T00:00:00Z
    """
    session: Session = context.obj
    app = session.require_app()
    with log_warnings():
        program = app.program()
    target = target_of(to)

    async def work(opened: Log) -> ResetPlan:
        from streamlog.worker.operations.app_reset import (  # noqa: PLC0415 - other commands start faster
            AppReset,
        )

        wanted = AppReset(program, opened)
        plan = await wanted.plan(target)
        if execute:
            await wanted.execute(plan, is_from_beginning=target is None)
        return plan

    plan = with_log(session, log, work)
    if as_json:
        typer.echo(msgspec.json.encode(plan_object(plan, is_executed=execute)))
        return
    show_plan(plan)
    say(
        f"app {plan.app_id} starts over: start its workers"
        if execute
        else "nothing was changed: stop the app's workers, and repeat with --execute"
    )


def target_of(text: str) -> Target | None:
    """Return the target that `--to` names; None for the beginning of each source.

    Raises:
        UsageError: the text is no target.
    """
    if text in (EARLIEST, LATEST):
        return None if text == EARLIEST else latest
    # No time is a number alone: ISO 8601 has separators.
    if text.isdecimal():
        return at_offset(int(text))
    try:
        return at_time(when_ms(text))
    except ConfigError as error:
        raise UsageError(f"--to takes earliest, latest, an offset or a time: {error}") from error


def show_plan(plan: ResetPlan) -> None:
    """Print what a reset changes, and what it leaves as it is."""
    grid = Grid("topic", "partition", "offset", "new offset")
    for part in sorted({*plan.before, *plan.after}):
        numbers = (plan.before.get(part), plan.after.get(part))
        grid.add_row(
            part.topic, str(part.partition), *("-" if n is None else str(n) for n in numbers)
        )
    out().print(grid)
    tasks = ", ".join(plan.state_tasks)
    rows = {
        "changelogs": ", ".join(plan.changelogs),
        "repartitions": ", ".join(plan.repartitions),
        "hand-overs": plan.hand_overs or "",
        "state here": f"{plan.state_path}: {tasks}" if tasks else "",
    }
    for what, text in rows.items():
        say(f"deletes {what:<13} {text or 'none'}")
    say("deletes stream times   those that are stored with positions and state")
    say(f"keeps   {STAYS}")


def plan_object(plan: ResetPlan, *, is_executed: bool) -> dict[str, object]:
    """Return a plan as a JSON object."""
    return {
        "app": plan.app_id,
        "executed": is_executed,
        "positions": [
            {
                "topic": part.topic,
                "partition": part.partition,
                "offset": plan.before.get(part),
                "new_offset": plan.after.get(part),
            }
            for part in sorted({*plan.before, *plan.after})
        ],
        "changelogs": plan.changelogs,
        "repartitions": plan.repartitions,
        "hand_overs": plan.hand_overs,
        "state_directory": plan.state_path,
        "state_tasks": plan.state_tasks,
    }


state = typer.Typer(help="Read the state of tasks, on disk and in snapshots, without the app.")
EXIT_DIFFERENT: Final = 1
WhereArgument = Annotated[
    str,
    typer.Argument(
        metavar="DIR|SNAPSHOT",
        help="The state directory of an app or a task, or the path or URL of a snapshot.",
    ),
]


def complete_stores(context: typer.Context, incomplete: str) -> list[str]:
    """Return the stores of a state that begin so, for the shell."""
    from streamlog.snapshots.state_reader import store_names  # noqa: PLC0415 - RocksDB, for this

    where = context.params.get("where") or context.params.get("before") or ""
    clock = SystemClock()
    until_ms = clock.now_ms() + COMPLETION_S * 1000
    try:
        found = store_names(where, lambda: clock.now_ms() >= until_ms)
    except StreamlogError:
        return []  # A shell has no use for an error: the command reports it.
    return sorted(name for name in found if name.startswith(incomplete))


StoreArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[STORE]", help="Without it: all stores.", autocompletion=complete_stores
    ),
]
TypesOption = Annotated[
    str | None,
    typer.Option(
        "--types",
        metavar="LOG",
        help="Read rows by the types that the app's workers have recorded in this log.",
    ),
]
LimitOption = Annotated[int, typer.Option("--limit", min=1, metavar="N", help="Stop after N rows.")]


@state.command("ls")
def state_ls(where: WhereArgument, *, as_json: JsonOption = False) -> None:
    """List tasks and stores, with their rows and bytes."""
    from streamlog.snapshots import state_reader  # noqa: PLC0415 - RocksDB, for this

    rows: list[dict[str, Any]] = []
    for task in state_reader.stored_tasks(where):
        counts, sizes = Counter[str](), Counter[str]()
        with progress_bar(f"reading task {task.name}", unit="rows") as bar:
            for store, key, value in state_reader.rows_of(task):
                counts[store] += 1
                sizes[store] += len(key) + len(value)
                bar.done += 1
        offset = state_reader.changelog_offset_of(task)
        rows += [
            {
                "task": task.name,
                "store": store,
                "rows": counts[store],
                "bytes": sizes[store],
                "changelog_offset": offset,
                "where": task.where,
            }
            for store in sorted(counts)
        ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    grid = Grid("task", "store", "rows", "bytes", "up to offset")
    for each in rows:
        offset = each["changelog_offset"]
        cells = (each["task"], each["store"], each["rows"], each["bytes"])
        grid.add_row(*map(str, cells), "-" if offset is None else str(offset))
    out().print(grid)


@state.command("get")
def state_get(
    where: WhereArgument,
    store: Annotated[str, typer.Argument(metavar="STORE", autocompletion=complete_stores)],
    key: Annotated[str, typer.Argument(metavar="KEY", help="The key, as `scan` shows it.")],
    *,
    context: typer.Context,
    types: TypesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the rows of one key, all of its windows included; exits with 1 if there are none."""
    found = [each for each in _shown(context, where, store, types) if _text(each.key) == key]
    _print(found, as_json=as_json)
    if not found:
        raise typer.Exit(EXIT_DIFFERENT)


@state.command("scan")
def state_scan(
    where: WhereArgument,
    store: StoreArgument = None,
    *,
    context: typer.Context,
    types: TypesOption = None,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """Print rows in the order of their keys; windows are shown as times."""
    _print(islice(_shown(context, where, store, types), limit), as_json=as_json)


@state.command("diff")
def state_diff(
    before: WhereArgument,
    after: WhereArgument,
    store: StoreArgument = None,
    *,
    context: typer.Context,
    types: TypesOption = None,
    limit: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """Print the rows in which two states differ; exits with 1 if they do.

    Example: streamlog state diff ./.streamlog/state/shop s3://snapshots/shop-1
    """
    from streamlog.snapshots import state_reader  # noqa: PLC0415 - RocksDB, for this

    first, second = map(state_reader.stored_tasks, (before, after))
    known = _types(context, types, [*first, *second])
    differs = False
    with progress_bar(f"comparing {before} and {after}", prints=True):
        for each in islice(state_reader.differences(first, second, store), limit):
            differs = True
            _print_difference(each, known.get(each.store), as_json=as_json)
    if differs:
        raise typer.Exit(EXIT_DIFFERENT)


def _print_difference(found: StateDifference, types: StoreTypes | None, *, as_json: bool) -> None:
    from streamlog.snapshots.state_reader import shown  # noqa: PLC0415 - RocksDB, for this
    from streamlog.snapshots.store_types import NO_TYPES  # noqa: PLC0415 - as above

    by = types or NO_TYPES
    old, new = (
        None if value is None else shown(found.task, found.store, found.key, value, by)
        for value in (found.before, found.after)
    )
    row = old or new
    if as_json:
        both = {"before": old and old.value, "after": new and new.value}
        typer.echo(json.dumps({"change": found.sign, **_object(row), **both}))
        return
    values = [_text(side.value) for side in (old, new) if side is not None]
    say(f"{found.sign} {_label(row)}\t{' -> '.join(values)}")


def _types(
    context: typer.Context, log: str | None, tasks: Iterable[StoredTask]
) -> Mapping[str, StoreTypes]:
    """Return the types that the workers of an app have recorded in a log; none without a log.

    Raises:
        UsageError: the log has no record of the app.
    """
    if log is None:
        return {}
    from streamlog.snapshots.store_types import types_of_all  # noqa: PLC0415 - as above
    from streamlog.worker.topics.version_log import recorded_blueprints  # noqa: PLC0415 - as above

    app_ids = {each.app_id for each in tasks}

    async def recorded(opened: Log) -> Mapping[str, StoreTypes]:
        return types_of_all(await recorded_blueprints(opened, log, app_ids))

    return with_log(context.obj or Session(), log, recorded)


def _shown(
    context: typer.Context, where: str, store: str | None, types: str | None
) -> Iterator[StoredRow]:
    from streamlog.snapshots import state_reader  # noqa: PLC0415 - RocksDB, for this
    from streamlog.snapshots.store_types import NO_TYPES  # noqa: PLC0415 - as above

    tasks = state_reader.stored_tasks(where)
    known = _types(context, types, tasks)
    for task in tasks:
        with progress_bar(f"reading task {task.name}", unit="rows", prints=True) as bar:
            for name, key, value in state_reader.rows_of(task, store):
                bar.done += 1
                by = known.get(name, NO_TYPES)
                yield state_reader.shown(task.name, name, key, value, by)


def _print(rows: Iterable[StoredRow], *, as_json: bool) -> None:
    for row in rows:
        if as_json:
            typer.echo(json.dumps({**_object(row), "value": row.value}))
        else:
            time = "" if row.time is None else f"\t{row.time}"
            raw = f"\traw: {', '.join(row.raw)}" if row.raw else ""
            say(f"{_label(row)}\t{_text(row.value)}{time}{raw}")


def _label(row: StoredRow | None) -> str:
    if row is None:
        return ""
    window = "" if row.window is None else f" [{row.window[0]}, {row.window[1]})"
    return f"{row.task}\t{row.store}\t{_text(row.key)}{window}"


def _object(row: StoredRow | None) -> dict[str, object]:
    if row is None:
        return {}
    window = None if row.window is None else {"start": row.window[0], "end": row.window[1]}
    return {
        "task": row.task,
        "store": row.store,
        "key": row.key,
        "window": window,
        "time": row.time,
        "raw": row.raw,
    }


def _text(shown: object) -> str:
    return one_line(shown) if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)
