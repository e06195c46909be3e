"""The peers' environment: a venv of its own, made from `peers/requirements.txt` on first use.

It lies under `benchmarks/.peers/`, which git ignores, and is made anew when the requirements or the
interpreter have changed. A peer that can't be installed here (no network, no wheel for this Python)
does not keep the others out: then each line is installed by itself, and the reason is told.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "peers" / "requirements.txt"
DIRECTORY = HERE.parent / ".peers"
MODULES = {"Quix Streams": "quixstreams", "Faust-streaming": "faust", "Bytewax": "bytewax"}
INSTALL_TIMEOUT_S = 600
REASON_LINES = 3


@dataclass(frozen=True, slots=True)
class Environment:
    """Where the peers' interpreter is, and which of them it can't import, with the reason."""

    python: Path
    missing: dict[str, str]


def environment() -> Environment:
    """The environment, made if it is not there yet, which takes a minute."""
    python = DIRECTORY / "bin" / "python"
    stamp = DIRECTORY / "made-from"
    wanted = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()
    reasons: dict[str, str] = {}
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"making the peers' environment in {DIRECTORY} ...", flush=True)
        shutil.rmtree(DIRECTORY, ignore_errors=True)
        _run(sys.executable, "-m", "venv", str(DIRECTORY))
        reasons = _install(python)
        if not reasons:
            stamp.write_text(wanted)
    missing = {}
    for name, module in MODULES.items():
        if error := _run(str(python), "-c", f"import {module}"):
            install = next((why for line, why in reasons.items() if module in line), None)
            missing[name] = install or error
    return Environment(python, missing)


def _install(python: Path) -> dict[str, str]:
    """All together, or line by line; why each line failed that did."""
    pip = (str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    if not _run(*pip, "-r", str(REQUIREMENTS)):
        return {}
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if line[:1].isalpha()]
    tried = {line: _run(*pip, line) for line in lines}
    return {line: reason for line, reason in tried.items() if reason}


def _run(*command: str) -> str:
    """Nothing if it went well, else the last lines of what it said."""
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    said = done.stdout.strip().splitlines() or [f"it ended with {done.returncode}"]
    return " / ".join(said[-REASON_LINES:]) if done.returncode else ""
