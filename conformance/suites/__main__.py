"""Runs the suites of others at our broker, prints what became of them, and writes the document.

`python -m conformance.suites kafka-python` runs one of them. It exits with 1 if a test fails that
is not left out, or if a reason is no longer true.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from conformance import document
from conformance.suites import java, kafka_python
from conformance.suites.cases import Unavailable, Verdict, report

SUITES: dict[str, Callable[[], Verdict]] = {
    "kafka-python": kafka_python.verdict,
    "java": java.verdict,
}


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m conformance.suites", description=__doc__)
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    wanted = parser.parse_args().suites or list(SUITES)
    unknown = set(wanted) - set(SUITES)
    if unknown:
        parser.error(f"no suite {', '.join(unknown)}; there are {', '.join(SUITES)}")
    failed = False
    for name in wanted:
        try:
            found = SUITES[name]()
        except Unavailable as error:
            print(f"{name} is not run: {error}")
            failed = True
            continue
        text = report(found)
        print(f"\n{text}")
        document.put(f"suite {name}", text)
        failed = failed or bool(found.faults)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
