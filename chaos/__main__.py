"""`python -m chaos`: brokers as processes under a load, and what goes wrong with them.

`python -m chaos kill power-cut --count 50 --limit 600` tries these kinds; without a name all are,
`--budget nightly` as often as a release has to have shown.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from chaos import world
from chaos.campaign import Verdict, campaign
from chaos.kinds import KINDS
from simulation.report import conditions

TOLD_MAX = 20
UNLIMITED_S = 1e9


async def _all(given: argparse.Namespace) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for name in given.kinds or KINDS:
        kind = KINDS[name]
        if kind.needs_network and not world.is_inside():
            print(f"{name}: left out, this system gives us no network of our own to break")
            continue
        count = given.count or (kind.nightly if given.budget == "nightly" else kind.short)
        verdict = await campaign(
            kind,
            count,
            seed=given.seed,
            brokers=given.brokers,
            limit_s=given.limit,
            keep=given.keep,
            on_round=lambda so_far: _report(given, [*verdicts, so_far]),
        )
        print(verdict.line(), flush=True)
        if verdict.violations:
            print(f"seeds {verdict.seeds}", *verdict.violations[:TOLD_MAX], sep="\n")
            print(verdict.logs, flush=True)
        verdicts.append(verdict)
    return verdicts


def _report(given: argparse.Namespace, verdicts: Sequence[Verdict]) -> None:
    """After every round: what is stopped early has shown something as well."""
    if given.report is not None:
        facts = conditions({"seed": given.seed})
        told = {"brokers": given.brokers, "kinds": [each.as_json() for each in verdicts]}
        given.report.write_text(json.dumps({**facts, **told}, indent=2) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, tell, and return 1 if anything was violated."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument(
        "kinds", nargs="*", choices=[[], *KINDS], metavar="KIND", help=", ".join(KINDS)
    )
    parser.add_argument("--budget", choices=["short", "nightly"], default="short")
    parser.add_argument("--count", type=int, help="how often, instead of the budget's")
    parser.add_argument("--limit", type=float, default=UNLIMITED_S, help="seconds of a kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--loopback", action="store_true", help="no network of our own")
    parser.add_argument("--keep", type=Path, help="where to keep brokers' files of bad rounds")
    parser.add_argument("--report", type=Path, help="where to write the JSON report")
    given = parser.parse_args(arguments)
    if world.is_inside():
        world.settle()
    elif not given.loopback:
        world.enter("chaos", sys.argv[1:] if arguments is None else arguments)
    logging.basicConfig(level=logging.ERROR)  # Clients warn of everything that is done to them.
    verdicts = asyncio.run(_all(given))
    return int(any(each.violations for each in verdicts))


if __name__ == "__main__":
    sys.exit(main())
