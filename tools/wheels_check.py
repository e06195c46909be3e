"""`make wheels-check`: each wheel in a fresh environment, by pip and by uv, without a compiler.

PATH has the environment alone, so nothing can be compiled, and no other streamlog found. A
program that writes to a log and reads from it, one under the test driver, and `streamlog doctor`
must work; the table says how long installing took, and how many hot modules are compiled.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from streamlog.metrics.build_info import HOT_MODULES
from tools.wheels import ROOT, VERSIONS, find_python, tag_of, tool

INSTALLERS = ("pip", "uv")
HELLO_WAIT_S = 60.0
SENT = ("send", "greetings", "world")
DRIVEN = """
from streamlog import App

app = App("shop")
sales = app.topic("sales", key=str, value=int, partitions=2)
totals = app.topic("totals", key=str, value=int, partitions=2)
table = app.stream(sales).group_by_key().reduce(lambda a, b: a + b, name="total")
table.changes().to(totals)
with app.test() as t:
    t.input(sales).send(3, key="ulm")
    t.input(sales).send(4, key="ulm")
    print(*t.output(totals).values)
"""


@dataclass
class Trial:
    """A wheel in an environment of its own."""

    wheel: Path
    version: str
    installer: str
    cpu_s: float = 0.0
    wall_s: float = 0.0
    compiled: int = 0
    failure: str = ""


def variables_of(home: Path, environment: Path) -> dict[str, str]:
    """Return what programs of an environment get: its PATH, and where packages come from."""
    kept = ("PIP_", "UV_", "SSL_", "HTTPS_PROXY", "https_proxy", "REQUESTS_")
    variables = {name: value for name, value in os.environ.items() if name.startswith(kept)}
    return {**variables, "PATH": str(environment / "bin"), "HOME": str(home), "LANG": "C.UTF-8"}


def run(command: Sequence[str], home: Path, environment: Path) -> str:
    """Run a program in the environment, where there is nothing else; return what it prints.

    Raises:
        RuntimeError: it failed; the message is its output.
    """
    done = subprocess.run(
        command,
        cwd=home,
        env=variables_of(home, environment),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[:4])}: {done.stdout[-800:]}{done.stderr[-800:]}")
    return done.stdout


def say_hello(home: Path, environment: Path) -> str:
    """Run the README's first program, send it a record as the README does; return its answer.

    Raises:
        RuntimeError: it does not answer, or ends with an error.
    """
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (home / "hello.py").write_text(next(block for block in blocks if 'App("hello")' in block))
    worker = subprocess.Popen(
        [str(environment / "bin" / "python"), "-u", "hello.py"],
        cwd=home,
        env=variables_of(home, environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    watchdog = threading.Timer(HELLO_WAIT_S, worker.kill)
    watchdog.start()
    try:
        command = [str(environment / "bin" / "streamlog"), "-A", "hello", *SENT]
        while not (home / ".streamlog").exists() and worker.poll() is None:
            time.sleep(0.1)
        run(command, home, environment)
        for line in worker.stdout or ():
            if line.startswith("hello, "):
                return line
        raise RuntimeError(f"hello.py did not answer in {HELLO_WAIT_S:.0f} s")
    finally:
        watchdog.cancel()
        worker.terminate()
        worker.wait()


def expect(text: str, wanted: str) -> None:
    """Compare what a program printed.

    Raises:
        RuntimeError: it printed something else.
    """
    if text.strip() != wanted:
        raise RuntimeError(f"printed {text!r} instead of {wanted!r}")


def install(trial: Trial, environment: Path, home: Path) -> None:
    """Install the wheel, and nothing that would have to be built.

    Raises:
        RuntimeError: it cannot be installed.
    """
    python = str(environment / "bin" / "python")
    command = [python, "-m", "pip", "install", "--disable-pip-version-check"]
    if trial.installer == "uv":
        command = [tool("uv"), "pip", "install", "--python", python]
    before, start_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    run([*command, "--only-binary", ":all:", str(trial.wheel)], home, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    trial.wall_s = time.perf_counter() - start_s
    trial.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def try_out(trial: Trial, home: Path) -> None:
    """Install, and run the programs; note a failure in the trial."""
    environment = home / "environment"
    base = find_python(trial.version)
    if base is None:
        trial.failure = f"there is no Python {trial.version} here"
        return
    python = str(environment / "bin" / "python")
    try:
        subprocess.run([str(base), "-m", "venv", str(environment)], check=True)
        install(trial, environment, home)
        expect(say_hello(home, environment), "hello, world")
        expect(run([python, "-c", DRIVEN], home, environment), "3 7")
        doctor = run([str(environment / "bin" / "streamlog"), "doctor"], home, environment)
        trial.compiled = sum(line.split()[-1:] == ["compiled"] for line in doctor.splitlines())
        wanted = 0 if tag_of(trial.wheel).startswith("py3") else len(HOT_MODULES)
        if trial.compiled != wanted:
            trial.failure = f"{trial.compiled} modules are compiled, not {wanted}"
    except (RuntimeError, subprocess.CalledProcessError) as error:
        trial.failure = str(error)


def trials_of(wheels: Sequence[Path]) -> list[Trial]:
    """Return what to try: the pure wheel with the oldest Python, the others with their own."""
    found = []
    for wheel in wheels:
        digits = tag_of(wheel).split("-")[0].removeprefix("cp3")
        version = VERSIONS[0] if digits == "py3" else f"3.{digits}"
        found += [Trial(wheel, version, installer) for installer in INSTALLERS]
    return found


def main() -> None:
    """Try all wheels of a directory, and print the table.

    Raises:
        SystemExit: there is no wheel, or one has failed.
    """
    parser = argparse.ArgumentParser(prog="python -m tools.wheels_check", description=__doc__)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist")
    trials = trials_of(sorted(parser.parse_args().dist.resolve().glob("*.whl")))
    if not trials:
        raise SystemExit("there is no wheel: `make wheels` builds them")
    table = Table(title="wheels in fresh environments, without a compiler", title_justify="left")
    for name in ("wheel", "Python", "by", "CPU s", "wall s", "compiled", "works"):
        table.add_column(name)
    for trial in trials:
        with tempfile.TemporaryDirectory() as home:
            try_out(trial, Path(home))
        figures = f"{trial.cpu_s:.1f}", f"{trial.wall_s:.1f}", f"{trial.compiled}"
        verdict = "no" if trial.failure else "yes"
        build = tag_of(trial.wheel).rpartition("-")[0]
        table.add_row(build, trial.version, trial.installer, *figures, verdict)
    Console(width=100).print(table)
    failures = [each for each in trials if each.failure]
    if failures:
        lines = (f"{each.wheel.name} by {each.installer}: {each.failure}" for each in failures)
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
