"""`python -m tests.equality --runs 500`: as many random programs, each run in three ways.

With `--live` three workers are fed while they run, and what they write is compared with histories.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from tests.broker.process import BrokerProcess
from tests.equality.live import compare_live
from tests.equality.runs import Unequal, compare


@contextmanager
def _broker(given: str, directory: Path) -> Iterator[str]:
    if given:
        yield given
        return
    with BrokerProcess(directory / "log", flush="os") as broker:
        yield broker.address


def main() -> int:
    """The seeds that failed are printed; the exit code says whether there are any."""
    parser = argparse.ArgumentParser(prog="python -m tests.equality", description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="how many programs")
    parser.add_argument("--seed", type=int, default=0, help="of the first one")
    parser.add_argument("--parallel", type=int, default=2, help="so many at a time")
    parser.add_argument(
        "--patience", type=int, default=1, help="so many times longer, on a machine that is busy"
    )
    parser.add_argument(
        "--live", action="store_true", help="fed while they run, compared with their histories"
    )
    parser.add_argument("--log", default="", help="HOST:PORT of brokers, instead of one of its own")
    arguments = parser.parse_args()
    seeds = range(arguments.seed, arguments.seed + arguments.runs)
    run = compare_live if arguments.live else compare
    began = monotonic()
    failed: list[int] = []
    promised: Counter[str] = Counter()
    """How many outputs of live runs were compared by each class."""
    with (
        tempfile.TemporaryDirectory(prefix="streamlog-equality-") as directory,
        _broker(arguments.log, Path(directory)) as address,
        ThreadPoolExecutor(arguments.parallel) as pool,
    ):
        waiting = {
            pool.submit(
                run, seed, address, Path(directory) / str(seed), patience=arguments.patience
            ): seed
            for seed in seeds
        }
        for done, future in enumerate(as_completed(waiting), 1):
            try:
                promised.update(flow.equality for flow in (future.result() or {}).values())
            except Unequal as error:
                failed.append(waiting[future])
                print(f"\n{error}\n", flush=True)
            if done % 10 == 0 or done == len(waiting):
                print(
                    f"{done} of {len(waiting)}, {len(failed)} failed, {monotonic() - began:.0f} s",
                    flush=True,
                )
    if promised:
        print(f"outputs by class: {dict(sorted(promised.items()))}")
    if failed:
        print(f"failed: seeds {', '.join(map(str, sorted(failed)))}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
