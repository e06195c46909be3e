"""kafka-python's integration tests, as far as they are for one broker.

The package index has them in the source distribution. They want a module `test.service` that is not
in it, which starts brokers of Apache Kafka; the one written here hands them ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree as ET

from conformance.clusters import own_broker
from conformance.suites.cases import FAILED, NOT_RUN, PASSED, Case, Unavailable, Verdict, reasons

VERSION = "3.0.12"
SHA256 = "4ccda3616b9aa5c353d74a97f2770d6cd1b950890d77ab0e8890e09a48eeed65"
NEEDS = ("pytest", "pytest-timeout", "pytest-mock", "py", "lz4", "zstandard", "python-snappy")
NEEDS_TOO = ("crc32c", "setuptools")
KAFKA_VERSION = "4.0.0"
"""What the tests take the broker for: they choose by it what they ask."""
SETTINGS = {
    "node.id": "0",
    "authorizer.class.name": "standard",
    "super.users": "User:ANONYMOUS",
}
"""A cluster of one broker with the number that the tests expect; ACLs can be set, none holds."""
TEST_S = 60
SUITE_S = 900
CACHE = Path(__file__).parent.parent.parent / ".conformance" / f"kafka-python-{VERSION}"
LEFT_OUT = Path(__file__).with_name("kafka_python.left_out")

_SERVICE = '''"""A broker that runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = dump_logs = open

    def wait_for(self, *args, **kwargs):
        pass


class SpawnedService:
    """Never made: the broker runs already."""
'''


def verdict() -> Verdict:
    """Fetch the tests if they are not there yet, and run them at a broker of ours.

    Raises:
        Unavailable: they can't be had.
    """
    python, tests = _fetched()
    found = CACHE / "result.xml"
    found.unlink(missing_ok=True)
    with own_broker(SETTINGS) as address:
        environment = {
            **os.environ,
            "KAFKA_ROOT": "/",
            "KAFKA_URI": f"kafka://{address}",
            "KAFKA_VERSION": KAFKA_VERSION,
            "PYTHONPATH": ".",
        }
        options = ["-q", "-W", "ignore", "-o", "log_level=WARNING", "--tb=line"]
        # Its clients have threads of their own, which go on when a test is ended by a thread.
        options += [f"--timeout={TEST_S}", "--timeout-method=signal", f"--junitxml={found}"]
        subprocess.run(
            [python, "-m", "pytest", "test/integration", *options],
            cwd=tests,
            env=environment,
            timeout=SUITE_S,
            check=False,
        )
    cases = list(_cases(found))
    return Verdict(f"kafka-python {VERSION}'s integration tests", cases, reasons(LEFT_OUT))


def _cases(found: Path) -> Iterator[Case]:
    for case in ET.parse(found).iter("testcase"):  # noqa: S314 - our own pytest wrote it
        place = (case.get("classname") or "").removeprefix("test.integration.")
        name = f"{place}.{case.get('name')}"
        results = {each.tag: each.get("message") or "" for each in case}
        for tag, result in (("failure", FAILED), ("error", FAILED), ("skipped", NOT_RUN)):
            if tag in results:
                yield Case(name, result, " ".join(results[tag].split()))
                break
        else:
            yield Case(name, PASSED)


def _fetched() -> tuple[Path, Path]:
    """An interpreter that has what the tests need, and the directory that they are in."""
    tests = CACHE / f"kafka_python-{VERSION}"
    python = CACHE / "venv" / "bin" / "python"
    whole = CACHE / "whole"
    if not whole.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        _do(sys.executable, "-m", "venv", str(CACHE / "venv"))
        _do(str(python), "-m", "pip", "install", "-q", f"kafka-python=={VERSION}", *NEEDS)
        _do(str(python), "-m", "pip", "install", "-q", *NEEDS_TOO)
        wanted = CACHE / "requirements.txt"
        wanted.write_text(f"kafka-python=={VERSION} --hash=sha256:{SHA256}\n")
        download = ("download", "-q", "--no-deps", "--no-binary", ":all:", "--require-hashes")
        place = ("-d", str(CACHE), "-r", str(wanted))
        _do(str(python), "-m", "pip", *download, *place)
        with tarfile.open(CACHE / f"kafka_python-{VERSION}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
        (tests / "test" / "__init__.py").touch()
        (tests / "test" / "service.py").write_text(_SERVICE)
        whole.touch()
    return python, tests


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SUITE_S, check=False)
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-3:])
        raise Unavailable(f"kafka-python's tests can't be had: {' '.join(command)}: {last}")
