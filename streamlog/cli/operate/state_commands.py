"""The commands about what an app has stored: `streamlog reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.cli.session import LogOption, Session, with_log
from streamlog.cli.terminal import log_warnings, out, say
from streamlog.client.offset_targets import Target, at_offset, at_time, latest
from streamlog.durations import when_ms
from streamlog.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from streamlog.log import Log
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
