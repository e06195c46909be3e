"""`make wheels`: an sdist, a wheel of each CPython that is here, and a wheel for every platform.

All wheels are built from the sdist, so an sdist that lacks a file fails. A wheel for one CPython
must have every hot module compiled. The pure wheel has none: an installer takes it where no other
fits, and everything works there, slower.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from rich.console import Console
from rich.table import Table

from streamlog.metrics.build_info import HOT_MODULES

ROOT = Path(__file__).parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def compiled_in(files: Sequence[str]) -> list[str]:
    """Return the hot modules of which the files of a wheel have a compiled one."""
    suffixes = ("so", "pyd", *EXTENSION_SUFFIXES)
    stems = {file.split(".")[0] for file in files if file.endswith(suffixes)}
    return [name for name in HOT_MODULES if name.replace(".", "/") in stems]


def problem_of(tag: str, files: Sequence[str]) -> str | None:
    """Return what is wrong with a wheel of that tag, such as `cp311-cp311-linux_x86_64`."""
    compiled = compiled_in(files)
    if tag.startswith("py3-none"):
        return f"a pure wheel has {compiled[0]} compiled" if compiled else None
    missing = [name for name in HOT_MODULES if name not in compiled]
    return f"{', '.join(missing)} not compiled: no C compiler?" if missing else None


def tag_of(wheel: Path) -> str:
    """Return the tag in the name of a wheel."""
    return "-".join(wheel.stem.split("-")[-3:])


def tool(name: str) -> str:
    """Return the path of a program of the environment that runs this.

    Raises:
        SystemExit: it is not installed.
    """
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise SystemExit(f"{name} is not installed: `make wheels` installs it")
    return found


def find_python(version: str) -> Path | None:
    """Return an interpreter: from PATH, uv or pyenv, else one that uv can download; or None."""
    uv = tool("uv")
    search = [uv, "python", "find", "--system", "--no-python-downloads", version]
    install = [uv, "python", "install", "--quiet", version]
    for command in (search, [], install, search):
        if not command:
            pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
            for found in sorted(pyenv.glob(f"versions/{version}.*/bin/python")):
                return found
            continue
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0 and command is search:
            return Path(done.stdout.strip())
    return None


def build(source: Path, out: Path, *options: str, pure: bool = False) -> Path:
    """Build a distribution, quietly, and return its file.

    Raises:
        SystemExit: the build failed; its output is the message.
    """
    before = {*out.glob("*")}
    # What the C compiler adds for debuggers would double a wheel.
    environment = {**os.environ, "LDFLAGS": "-s", "STREAMLOG_PURE": str(int(pure))}
    command = [tool("uv"), "build", str(source), "--out-dir", str(out), *options]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    found = sorted({*out.glob("*.whl"), *out.glob("*.tar.gz")} - before)
    if done.returncode or len(found) != 1:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return found[0]


def name_platform(wheel: Path) -> Path:
    """Give a wheel of Linux the name of the oldest system that it runs on; return its new file."""
    if "-linux_" not in wheel.name:
        return wheel
    out = wheel.parent
    before = {*out.glob("*.whl")}
    command = [tool("auditwheel"), "repair", "--wheel-dir", str(out), str(wheel)]
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    found = sorted({*out.glob("*.whl")} - before)
    if done.returncode or len(found) != 1:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    wheel.unlink()
    return found[0]


def build_all(source: Path, out: Path, versions: Sequence[str]) -> tuple[list[Path], list[str]]:
    """Build the sdist and its wheels; return the files, and the versions without interpreter.

    Raises:
        SystemExit: a build failed, or a wheel is not what its name says.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    sdist = build(source, out, "--sdist")
    built, missing = [sdist, build(sdist, out, "--wheel", pure=True)], []
    for version in versions:
        python = find_python(version)
        if python is None:
            missing.append(version)
            continue
        built.append(name_platform(build(sdist, out, "--wheel", "--python", str(python))))
    for wheel in built[1:]:
        with zipfile.ZipFile(wheel) as archive:
            problem = problem_of(tag_of(wheel), archive.namelist())
        if problem is not None:
            raise SystemExit(f"{wheel.name}: {problem}")
    return built, missing


def main() -> None:
    """Build, and print what was built."""
    parser = argparse.ArgumentParser(prog="python -m tools.wheels", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="emptied first")
    parser.add_argument("--python", nargs="*", default=VERSIONS, help="versions; none: pure only")
    given = parser.parse_args()
    built, missing = build_all(ROOT, given.out, given.python)
    table = Table("file", "KiB", title="distributions", title_justify="left")
    for file in built:
        table.add_row(file.name, f"{file.stat().st_size / 1024:,.0f}")
    Console().print(table)
    if missing:
        print(f"no wheel for {', '.join(missing)}: no such interpreter here, and uv can't get one")


if __name__ == "__main__":
    main()
