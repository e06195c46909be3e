"""`make attack`: every attack, larger than in the tests, as a table and as JSON."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from tests.attack.attacks import ATTACKS


def main() -> int:
    """Run the chosen attacks; return 1 if any expectation failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", nargs="*", choices=[[], *ATTACKS], default=[])
    parser.add_argument("--size", type=int, default=3, help="how many times the tests' size")
    parser.add_argument("--report", type=Path, help="where the JSON goes")
    given = parser.parse_args()
    findings = []
    for name in given.attacks or ATTACKS:
        with tempfile.TemporaryDirectory() as directory:
            finding = ATTACKS[name](Path(directory), given.size)
        findings.append(asdict(finding))
        verdict = "held" if not finding.broken else "BROKEN"
        print(f"{finding.attack:<28} {verdict:<7} {finding.facts}", flush=True)  # noqa: T201 - a report
        for what in finding.broken:
            print(f"    does not hold: {what}", flush=True)  # noqa: T201 - a report
    if given.report is not None:
        given.report.write_text(json.dumps(findings, indent=2) + "\n")
    return int(any(each["broken"] for each in findings))


if __name__ == "__main__":
    sys.exit(main())
