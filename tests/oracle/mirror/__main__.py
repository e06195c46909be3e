"""`python -m tests.oracle.mirror`: mirrors of Apache Kafka and of ours, by random histories.

Each history has clusters of its own: the source is Apache Kafka (`--source kafka`) or brokers of
ours, and brokers of ours mirror it. Brokers of both sides are killed and restarted on the way.
What does not hold at the end is printed with the seed; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from conformance.kafka import Unavailable
from tests.oracle.mirror.clusters import kafka_side, our_side
from tests.oracle.mirror.history import History

UNAVAILABLE: Final = 2


def one(options: argparse.Namespace, seed: int) -> list[str]:
    """Live one history; return what does not hold."""
    with tempfile.TemporaryDirectory(prefix="streamlog-mirror-") as directory:
        folder = Path(directory)
        source = (
            kafka_side(folder / "source")
            if options.source == "kafka"
            else our_side(folder / "source", options.brokers)
        )
        with source as there, our_side(folder / "mirror", options.brokers) as here:
            history = History(there, here, Random(f"mirror-{seed}"), options.acts)
            found = history.run()
            print(f"seed {seed}: {'; '.join(history.told)}", flush=True)
            return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Live the histories, and print what does not hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.mirror", description=__doc__)
    parser.add_argument("--source", choices=("kafka", "ours"), default="kafka")
    parser.add_argument("--brokers", type=int, default=1, help="brokers of each side of ours")
    parser.add_argument("--histories", type=int, default=3)
    parser.add_argument("--acts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    bad = 0
    for seed in range(options.seed, options.seed + options.histories):
        try:
            found = one(options, seed)
        except Unavailable as error:
            print(error)
            return UNAVAILABLE
        print(f"seed {seed}: {len(found)} differences", *found, sep="\n", flush=True)
        bad += bool(found)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
