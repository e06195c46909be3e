"""`python -m tests.equality --runs 500`: as many random programs, each run in three ways.

With `--live`, inputs grow while three workers run, and their output is compared with histories.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from tests.broker.process import BrokerProcess
from tests.equality.live import compare_fed, compare_live
from tests.equality.runs import Unequal, compare

Run: TypeAlias = Callable[..., Counter[str] | None]


@contextmanager
def _broker(address_: str, directory: Path) -> Iterator[str]:
    if address_:
        yield address_
        return
    with BrokerProcess(directory / "log", flush="os") as broker:
        yield broker.address


def _run_of(arguments: argparse.Namespace) -> Run:
    if not arguments.live:
        return compare
    if arguments.tasks:
        return compare_fed
    if not arguments.spark:
        return compare_live
    from tests.spark_bridge.live import spark_history  # noqa: PLC0415 - needs a JVM

    return partial(compare_live, others={"spark": spark_history()})


def main() -> int:
    """Print the seeds that failed; return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="number of programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--parallel", type=int, default=2, help="number of programs at a time")
    parser.add_argument(
        "--patience", type=int, default=1, help="factor of time-outs, for a busy machine"
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="feed workers while they run, and compare them with histories",
    )
    parser.add_argument(
        "--tasks", action="store_true", help="with --live: only tasks, in this process"
    )
    parser.add_argument(
        "--spark", action="store_true", help="with --live: Spark's histories of the logs as well"
    )
    parser.add_argument("--log", default="", help="HOST:PORT of brokers, instead of a new one")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    run = _run_of(arguments)
    began = monotonic()
    failed: list[int] = []
    counts_by_class: Counter[str] = Counter()
    """The number of live outputs compared by each equality class."""
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-equality-") as directory,
        _broker(arguments.log, Path(directory)) as address,
        ThreadPoolExecutor(arguments.parallel) as pool,
    ):
        runs = {
            pool.submit(
                run, seed, address, Path(directory) / str(seed), patience=arguments.patience
            ): seed
            for seed in seeds
        }
        for done, future in enumerate(as_completed(runs), 1):
            try:
                counts_by_class.update(future.result() or {})
            except Unequal as error:
                failed.append(runs[future])
                print(f"\n{error}\n", flush=True)
            if done % 10 == 0 or done == len(runs):
                print(
                    f"{done} of {len(runs)}, {len(failed)} failed, {monotonic() - began:.0f} s",
                    flush=True,
                )
    if counts_by_class:
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(counts_by_class.items()))
        print(f"outputs by class: {counts}")
    if failed:
        print(f"failed: seeds {', '.join(map(str, sorted(failed)))}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
