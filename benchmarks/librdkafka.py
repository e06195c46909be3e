"""librdkafka's own performance program, built once from Debian's source package.

It is the client of the `wire` benchmark: written in C, used by everybody who measures brokers, and
by far faster than any broker in Python, so what is measured is the broker. The source comes by
`apt-get source` with a configuration of its own, so nothing of the system is changed and no
privilege is needed; it is built into a cache directory outside the repository.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

SOURCE = "deb-src http://deb.debian.org/debian bookworm main\n"
"""One release for all machines: figures of different librdkafka versions don't compare."""
TOOLS = ("apt-get", "dpkg-source", "make", "cc")
BUILD_TIMEOUT_S = 600
RUN_TIMEOUT_S = 300
FEATURES_OFF = ("ssl", "gssapi", "curl", "sasl", "zstd")

_PRODUCED = re.compile(r"(\d+) delivered \(offset \d+, (\d+) failed\) in (\d+)ms")
_CONSUMED = re.compile(r"(\d+) messages \(\d+ bytes\) consumed in (\d+)ms")


class Unavailable(Exception):
    """The program can't be had on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of the program has reported, and what it has cost."""

    records: int
    wall_s: float
    cpu_s: float


def performance_program() -> Path:
    """Where `rdkafka_performance` is; built if it is not there yet, which takes a minute.

    Raises:
        Unavailable: a tool is missing, there is no network, or it does not build.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = cache / "streamlog" / "benchmarks"
    if found := _built(directory):
        return found
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise Unavailable(f"librdkafka can't be built here, there is no {', '.join(missing)}")
    directory.mkdir(parents=True, exist_ok=True)
    _fetch(directory)
    source = next(path for path in directory.glob("librdkafka-*") if path.is_dir())
    _do(source, "./configure", *(f"--disable-{feature}" for feature in FEATURES_OFF))
    _do(source, "make", f"-j{os.cpu_count() or 1}", "libs")
    _do(source / "examples", "make", "rdkafka_performance")
    if found := _built(directory):
        return found
    raise Unavailable(f"librdkafka was built in {source}, and there is no rdkafka_performance")


def run(program: Path, *arguments: str) -> Run:
    """Run the program to its end; it is killed after five minutes.

    Raises:
        RuntimeError: it failed, or messages did.
    """
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen([program, *arguments], stdout=said, stderr=said)
        watchdog = Timer(RUN_TIMEOUT_S, process.kill)
        watchdog.start()
        try:
            # Of this process alone: at times others of them run beside it.
            _, status, used = os.wait4(process.pid, 0)
        finally:
            watchdog.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        said.seek(0)
        output = said.read()
    if found := _PRODUCED.findall(output):
        records, failed, wall_ms = map(int, found[-1])
    elif found := _CONSUMED.findall(output):
        (records, wall_ms), failed = map(int, found[-1]), 0
    else:
        records = failed = wall_ms = 0
    if process.returncode or failed or not records:
        raise RuntimeError(f"rdkafka_performance {' '.join(arguments)}:\n{output}")
    return Run(records, max(wall_ms, 1) / 1000, used.ru_utime + used.ru_stime)


def _built(directory: Path) -> Path | None:
    return next(directory.glob("librdkafka-*/examples/rdkafka_performance"), None)


def _fetch(directory: Path) -> None:
    """Let apt fetch, check and unpack the source, with lists of its own."""
    for name in ("lists/partial", "archives/partial", "parts"):
        (directory / "apt" / name).mkdir(parents=True, exist_ok=True)
    sources = directory / "apt" / "sources.list"
    sources.write_text(SOURCE)
    settings = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": directory / "apt" / "parts",
        "Dir::State::lists": directory / "apt" / "lists",
        "Dir::Cache": directory / "apt",
    }
    options = [option for name, value in settings.items() for option in ("-o", f"{name}={value}")]
    _do(directory, "apt-get", *options, "update")
    _do(directory, "apt-get", *options, "source", "librdkafka")


def _do(directory: Path, *command: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"librdkafka can't be built here: {error}") from error
    if done.returncode:
        last = "\n".join(done.stdout.splitlines()[-3:])
        raise Unavailable(f"librdkafka can't be built here: {command[0]} in {directory}: {last}")
