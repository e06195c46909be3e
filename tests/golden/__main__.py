"""`python -m tests.golden PATH`: a file of cases on the test driver, or on workers and a broker.

The runner `oracle` is for the oracle's own sake: whether it may be believed.

A line for each case that fails, and a count per category. The exit code is 1 if one fails that
every engine of the kind must pass; cases that hang on a choice of Kafka's own are named, with
the choice, and do not fail the run.
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
"""Cases on workers at a time: they wait for the broker more than they work."""
RUNNERS = {"driver": run_on_driver, "oracle": run_on_oracle}
"""Those that need no log."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a case has ended."""

    case: Case
    what: str = "passed"
    """Or "failed", or "missing" if something is not there."""
    why: str = ""

    @property
    def is_core(self) -> bool:
        """Whether every engine of the kind must pass it."""
        return bool(self.case["strictness"] == "core")

    def __str__(self) -> str:
        case = self.case
        quirks = "" if self.is_core else f" [quirk: {', '.join(case.get('quirks', []))}]"
        return f"{case['category']}/{case['id']}{quirks} {self.what}: {self.why}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("path", type=Path, help="the file of cases")
    parser.add_argument("--runner", choices=["driver", "worker", "oracle"], default="driver")
    parser.add_argument("--id", action="append", help="only this case; may be repeated")
    parser.add_argument(
        "--log",
        help="of workers: kafka://HOST:PORT or embedded:DIR, instead of a broker of its own",
    )
    given = parser.parse_args(arguments)
    cases = json.loads(given.path.read_text())["cases"]
    chosen = [case for case in cases if not given.id or case["id"] in given.id]
    if not chosen:
        print(f"there is no such case in {given.path}")
        return 2
    warnings.simplefilter("ignore", UserWarning)
    logging.basicConfig(level=logging.ERROR)
    began = monotonic()
    with tempfile.TemporaryDirectory(prefix="streamlog-golden-") as directory:
        outcomes = run(chosen, given.runner, Path(directory), given.log)
    print("\n".join(_report(outcomes)))
    print(f"{len(outcomes)} cases on the {given.runner} in {monotonic() - began:.1f} s")
    return int(any(each.is_core and each.what != "passed" for each in outcomes))


def run(
    cases: Sequence[Case], runner: str, directory: Path, log_url: str | None = None
) -> list[Outcome]:
    """All of them; those without a topology ask nothing of a log."""
    if runner in RUNNERS:
        return [at_once(case, runner) for case in cases]
    if log_url is not None:
        return asyncio.run(on_workers(cases, log_url, directory))
    # With settings, what it has to say goes to a file.
    settings = {"listeners": "PLAINTEXT://127.0.0.1:0"}
    with BrokerProcess(directory / "log", flush="os", settings=settings) as broker:
        address = f"127.0.0.1:{broker.ports['PLAINTEXT']}"
        return asyncio.run(on_workers(cases, f"kafka://{address}", directory))


def at_once(case: Case, runner: str = "driver") -> Outcome:
    """The case without a log; a fact is asked for."""
    try:
        if "fact" in case:
            wrong = wrong_answers(case["fact"])
            return Outcome(case, "failed", "; ".join(wrong)) if wrong else Outcome(case)
        return _compared(case, RUNNERS[runner](case))
    except Unsupported as missing:
        return Outcome(case, "missing", str(missing))
    except StreamlogError as error:
        return Outcome(case, "failed", f"{type(error).__name__}: {error}")


async def on_workers(cases: Sequence[Case], log_url: str, directory: Path) -> list[Outcome]:
    """Each case on a worker of its own, some at a time."""
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
    """The case on a worker over this log."""
    if "fact" in case:
        return at_once(case)
    try:
        rows = await WorkerRun(case, log, log_url, directory).rows()
    except Unsupported as missing:
        return Outcome(case, "missing", str(missing))
    except StreamlogError as error:
        return Outcome(case, "failed", repr(error))
    except ExceptionGroup as errors:
        # Of the worker, and of who waited for it.
        return Outcome(case, "failed", "; ".join(map(repr, _leaves(errors))))
    return _compared(case, rows)


def _leaves(errors: ExceptionGroup[Exception]) -> Iterator[Exception]:
    for error in errors.exceptions:
        if isinstance(error, ExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _compared(case: Case, rows: Sequence[Row]) -> Outcome:
    found = difference(case, rows)
    return Outcome(case) if found is None else Outcome(case, "failed", found)


def _report(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A line for each that has not passed, then a count per category."""
    yield from (str(each) for each in outcomes if each.what != "passed")
    counts = Counter((each.case["category"], each.is_core, each.what) for each in outcomes)
    for category in sorted({each.case["category"] for each in outcomes}):
        for is_core, strictness in ((True, "core"), (False, "quirk")):
            found = {
                what: counts[category, is_core, what] for what in ("passed", "failed", "missing")
            }
            if any(found.values()):
                told = ", ".join(f"{n} {what}" for what, n in found.items() if n)
                yield f"{category:22} {strictness:6} {told}"
    passed = sum(each.what == "passed" for each in outcomes)
    failed = [each for each in outcomes if each.what != "passed"]
    core = sum(each.is_core for each in failed)
    yield f"{passed} passed, {core} core and {len(failed) - core} quirk cases did not"


if __name__ == "__main__":
    sys.exit(main())
