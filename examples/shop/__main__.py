"""Runs the example: nginx, PostgreSQL, clients who buy, a worker, and the check at the end.

This process starts the two servers, is the clients, and watches; the worker, with the log embedded
in it, is a child. `--chaos` kills the worker three times with SIGKILL and crashes PostgreSQL once.
The access log is rotated three times in any case.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Final

import psycopg
from rich.console import Console
from rich.live import Live

from examples.shop import report
from examples.shop.app import PARTITIONS, app, products
from examples.shop.check import Verdict, check, found_purchases
from examples.shop.market import PRODUCTS, Market, nginx_server, postgres_server
from streamlog.log import Log
from streamlog.record import TopicPartition
from tests.servers.server_process import MissingProgramError

DIRECTORY: Final = Path(".streamlog/shop")
GRACE_S: Final = 15
"""How long a purchase waits for a price, as the app says, in event time."""
ROTATE_AT: Final = (0.2, 0.5, 0.8)
"""Shares of the time after which the access log is rotated."""
KILL_AT: Final = (0.25, 0.5, 0.75)
"""Shares of the time after which `--chaos` kills the worker."""
CRASH_AT: Final = (0.6,)
"""Shares of the time after which `--chaos` crashes PostgreSQL."""
READY_S: Final = 60
STALLED_S: Final = 60
"""Without a new row for so long, the demonstration gives up and shows what is missing."""
DRAW_S: Final = 0.25


class WorkerEndedError(Exception):
    """The worker has ended by itself: its last lines are the message."""


@dataclass
class Run:
    """What the parts of one run share."""

    market: Market
    seconds: float
    chaos: bool
    kills: int = 0
    worker: Process | None = None
    may_end: bool = False
    """Whether the worker is being ended by us."""
    progress: report.Progress = field(default_factory=report.Progress)

    @property
    def files(self) -> Path:
        """The directory of the Parquet files."""
        return DIRECTORY.resolve() / "files"


async def start_worker(run: Run) -> None:
    """Start a worker process, whose output goes to `worker.log`."""
    settings = {
        "SHOP_DIRECTORY": str(DIRECTORY.resolve()),
        "SHOP_DATABASE": run.market.database_url,
        "SHOP_LOG_FILES": run.market.log_pattern,
    }
    with (DIRECTORY / "worker.log").open("ab") as output:
        run.worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "streamlog", "-A", "examples.shop.app", "worker"),
            stdout=output,
            stderr=output,
            env={**os.environ, **settings},
            # Ctrl-C at the terminal is for this process, which stops its child itself.
            start_new_session=True,
        )


async def watch_worker(run: Run) -> None:
    """Wait until the worker ends without having been told to.

    Raises:
        WorkerEndedError: it has.
    """
    while run.worker is not None:
        worker = run.worker
        code = await worker.wait()
        if not run.may_end and worker is run.worker:
            lines = (DIRECTORY / "worker.log").read_text().strip().splitlines()[-15:]
            raise WorkerEndedError("\n".join([f"the worker ended with code {code}:", *lines]))
        await asyncio.sleep(DRAW_S)


async def end_worker(run: Run, how: signal.Signals) -> None:
    """Send the worker a signal that ends it, and wait until it has ended."""
    run.may_end = True
    if run.worker is not None and run.worker.returncode is None:
        run.worker.send_signal(how)
        await run.worker.wait()


async def kill_worker(run: Run) -> None:
    """Kill the worker, and start a new one in its place."""
    await end_worker(run, signal.SIGKILL)
    run.kills += 1
    await start_worker(run)
    run.may_end = False


async def disturb(run: Run) -> None:
    """Rotate the log, and with `--chaos` kill the worker and crash the database, at their times."""
    times = [(share, "rotate") for share in ROTATE_AT]
    if run.chaos:
        times += [(share, "kill") for share in KILL_AT] + [(share, "crash") for share in CRASH_AT]
    start = perf_counter()
    for share, what in sorted(times):
        await asyncio.sleep(max(0.0, share * run.seconds - (perf_counter() - start)))
        match what:
            case "rotate":
                run.market.rotate()
            case "kill":
                await kill_worker(run)
            case _:
                await asyncio.to_thread(run.market.restart_database)


async def wait_for_prices() -> None:
    """Wait until the worker has captured the first price of each product.

    Raises:
        TimeoutError: that took too long.
    """
    partitions = [TopicPartition(products.name, number) for number in range(PARTITIONS)]
    async with (
        asyncio.timeout(READY_S),
        Log.attach(app.log, timeout_ms=READY_S * 1_000) as log,
        log.consumer(isolation_level="read_committed") as consumer,
    ):
        # The end of a partition counts the marker of the transaction, too.
        while sum((await consumer.end_offsets(partitions)).values()) <= len(PRODUCTS):  # noqa: ASYNC110
            await asyncio.sleep(DRAW_S)


async def wait_for_rows(run: Run) -> None:
    """Wait until each purchase is in the report, or until nothing has come for a while."""
    newest, seen = perf_counter(), -1
    while run.progress.reported < run.market.bought and perf_counter() - newest < STALLED_S:
        if run.progress.reported != seen:
            newest, seen = perf_counter(), run.progress.reported
        await asyncio.sleep(DRAW_S)


async def follow(run: Run, view: Live) -> None:
    """Bring the screen up to date until cancelled."""
    while True:
        # While it restarts, the database has nothing to say.
        with suppress(psycopg.OperationalError):
            run.progress.reported = await asyncio.to_thread(found_purchases, run.market)
        run.progress.bought = run.market.bought
        run.progress.price_changes = run.market.price_changes
        run.progress.rotations = run.market.rotations
        run.progress.kills, run.progress.crashes = run.kills, run.market.restarts
        run.progress.files = len([*run.files.rglob("*.parquet")])
        view.refresh()
        await asyncio.sleep(DRAW_S)


async def work(run: Run, console: Console) -> None:
    """Worker, clients, and view side by side."""
    view = Live(get_renderable=run.progress.render, console=console, auto_refresh=False)
    await start_worker(run)
    try:
        with view:
            async with asyncio.TaskGroup() as group:
                beside = [
                    group.create_task(watch_worker(run)),
                    group.create_task(follow(run, view)),
                ]
                await wait_for_prices()
                async with asyncio.TaskGroup() as trade:
                    trade.create_task(run.market.serve(run.seconds))
                    trade.create_task(disturb(run))
                # The last purchases wait for later ones, so that their prices can't be too old.
                await asyncio.sleep(GRACE_S + 1)
                await run.market.close_up()
                await wait_for_rows(run)
                for task in beside:
                    task.cancel()
    finally:
        await end_worker(run, signal.SIGTERM)


def conclude(run: Run, verdict: Verdict, console: Console) -> int:
    """Print the report and the verdict; return the exit code."""
    console.print(report.best_sellers(verdict.found, [*PRODUCTS]))
    done = f"{run.market.rotations} rotations of the access log"
    if run.chaos:
        done += f", {run.kills} kills of the worker, {run.market.restarts} crash of PostgreSQL"
    console.print(f"{verdict.lines:,} purchases, {run.market.price_changes} prices changed, {done}")
    for line in report.differences(verdict):
        console.print(f"[red]{line}")
    if not verdict.is_right:
        console.print("[red bold]what came out differs from what the servers have")
        return 1
    console.print(
        f"[green bold]each of nginx's {verdict.lines:,} lines is in {verdict.files} Parquet files "
        f"once, and all {len(verdict.found)} rows of the report equal DuckDB's"
    )
    return 0


async def run_demo(arguments: argparse.Namespace, console: Console) -> int:
    """Run the whole demonstration; return the exit code."""
    started = perf_counter()
    with nginx_server() as nginx, postgres_server() as postgres:
        market = Market(nginx, postgres, postgres.create_database())
        market.open()
        console.print(f"nginx at {nginx.url}, PostgreSQL at {market.database_url}")
        run = Run(market=market, seconds=arguments.seconds, chaos=arguments.chaos)
        await work(run, console)
        verdict = check(market, f"{run.files}/**/*.parquet")
        code = conclude(run, verdict, console)
    took = perf_counter() - started
    console.print(f"took {took:.0f} s; the worker's output: {DIRECTORY / 'worker.log'}")
    return code


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m examples.shop", description=__doc__)
    parser.add_argument("--chaos", action="store_true", help="kill the worker and the database")
    parser.add_argument("--seconds", type=float, default=60, help="how long clients buy")
    arguments = parser.parse_args()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    DIRECTORY.mkdir(parents=True)
    try:
        sys.exit(asyncio.run(run_demo(arguments, Console())))
    except* MissingProgramError as group:
        missing = "\n".join(map(str, group.exceptions))
        sys.exit(f"the demonstration needs two servers of this machine: {missing}")
    except* WorkerEndedError as group:
        sys.exit("\n".join(map(str, group.exceptions)))
    except* KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
