"""`python -m tests.golden PATH`: a file of cases on the test driver, or on workers and a broker.

The runner `oracle` checks the oracle itself.

It prints a line for each case that fails, and counts per category. The exit code is 1 if a case
fails that every stream processor must pass. Failed cases that depend on a choice of Kafka's own are
named, with the choice, and do not fail the run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from streamlog.errors import StreamlogError
from streamlog.log import Log
from tests.broker.process import BrokerProcess
from tests.golden.compare import Case, Row, difference
from tests.golden.facts import wrong_answers
from tests.golden.functions import Unsupported
from tests.golden.runners import WorkerRun, run_on_driver
from tests.oracle.program import run_on_oracle

PARALLEL = 8
"""Cases that run on workers at a time: they mostly wait for the broker."""
RUNNERS = {"driver": run_on_driver, "oracle": run_on_oracle}
"""Runners that need no log."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a case."""

    case: Case
    status: str = "passed"
    """Or "failed", or "missing" if the case needs an unsupported feature."""
    why: str = ""

    @property
    def is_core(self) -> bool:
        """Whether every stream processor must pass it."""
        return bool(self.case["strictness"] == "core")

    def __str__(self) -> str:
        case = self.case
        quirks = "" if self.is_core else f" [quirk: {', '.join(case.get('quirks', []))}]"
        return f"{case['category']}/{case['id']}{quirks} {self.status}: {self.why}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("path", type=Path, help="the file of cases")
    parser.add_argument("--runner", choices=["driver", "worker", "oracle"], default="driver")
    parser.add_argument("--id", action="append", help="only this case; may be repeated")
    parser.add_argument(
        "--log",
        help="workers' log: kafka://HOST:PORT or embedded:DIR, instead of a new broker",
    )
    options = parser.parse_args(arguments)
    cases = json.loads(options.path.read_text())["cases"]
    chosen = [case for case in cases if not options.id or case["id"] in options.id]
    if not chosen:
        print(f"there is no such case in {options.path}")
        return 2
    warnings.simplefilter("ignore", UserWarning)
    logging.basicConfig(level=logging.ERROR)
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="streamlog-golden-") as directory:
        outcomes = run(chosen, options.runner, Path(directory), options.log)
    print("\n".join(_report(outcomes)))
    print(f"{len(outcomes)} cases on the {options.runner} in {monotonic() - began:.1f} s")
    return int(any(each.is_core and each.status != "passed" for each in outcomes))


def run(
    cases: Sequence[Case], runner: str, directory: Path, log_url: str | None = None
) -> list[Outcome]:
    """Run all cases; cases without a topology need no log."""
    if runner in RUNNERS:
        return [run_without_log(case, runner) for case in cases]
    if log_url is not None:
        return asyncio.run(on_workers(cases, log_url, directory))
    # A broker with settings writes its output to a file.
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0"}
    with BrokerProcess(directory / "log", flush="os", settings=settings) as broker:
        address = f"127.0.0.1:{broker.ports['PLAINTEXT']}"
        return asyncio.run(on_workers(cases, f"kafka://{address}", directory))


def run_without_log(case: Case, runner: str = "driver") -> Outcome:
    """Run the case without a log, or check its fact."""
    try:
        if "fact" in case:
            wrong = wrong_answers(case["fact"])
            return Outcome(case, "failed", "; ".join(wrong)) if wrong else Outcome(case)
        return _compare(case, RUNNERS[runner](case))
    except Unsupported as missing:
        return Outcome(case, "missing", str(missing))
    except StreamlogError as error:
        return Outcome(case, "failed", f"{type(error).__name__}: {error}")


async def on_workers(cases: Sequence[Case], log_url: str, directory: Path) -> list[Outcome]:
    """Run each case on its own worker, some at a time."""
    outcomes: dict[int, Outcome] = {}
    waiting = iter(enumerate(cases))

    async def work(log: Log) -> None:
        for at, case in waiting:
            outcomes[at] = await on_worker(case, log, log_url, directory)

    async with Log.open(log_url) as log, asyncio.TaskGroup() as group:
        for _ in range(PARALLEL):
            group.create_task(work(log))
    return [outcomes[at] for at in range(len(cases))]


async def on_worker(case: Case, log: Log, log_url: str, directory: Path) -> Outcome:
    """Run the case on a worker over this log."""
    if "fact" in case:
        return run_without_log(case)
    try:
        rows = await WorkerRun(case, log, log_url, directory).rows()
    except Unsupported as missing:
        return Outcome(case, "missing", str(missing))
    except StreamlogError as error:
        return Outcome(case, "failed", repr(error))
    except ExceptionGroup as errors:
        # Errors of the worker, and of the code that waited for it.
        return Outcome(case, "failed", "; ".join(map(repr, _flatten(errors))))
    return _compare(case, rows)


def _flatten(errors: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in errors.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _flatten(error)
        else:
            yield error


def _compare(case: Case, rows: Sequence[Row]) -> Outcome:
    found = difference(case, rows)
    return Outcome(case) if found is None else Outcome(case, "failed", found)


def _report(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield a line for each case that did not pass, then counts per category."""
    yield from (str(each) for each in outcomes if each.status != "passed")
    counts = Counter((each.case["category"], each.is_core, each.status) for each in outcomes)
    for category in sorted({each.case["category"] for each in outcomes}):
        for is_core, strictness in ((True, "core"), (False, "quirk")):
            found = {
                status: counts[category, is_core, status]
                for status in ("passed", "failed", "missing")
            }
            if any(found.values()):
                text = ", ".join(f"{n} {status}" for status, n in found.items() if n)
                yield f"{category:22} {strictness:6} {text}"
    passed = sum(each.status == "passed" for each in outcomes)
    failed = [each for each in outcomes if each.status != "passed"]
    core = sum(each.is_core for each in failed)
    yield f"{passed} passed, {core} core and {len(failed) - core} quirk cases did not"


if __name__ == "__main__":
    sys.exit(main())
