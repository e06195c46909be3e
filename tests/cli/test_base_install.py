"""The commands of an installation without extras: each shows its help, or names the extra."""

from __future__ import annotations

import subprocess
import sys

EXTRAS = (
    "datasketches ddsketch deltalake fastavro fsspec google.protobuf h11 httpx jsonschema jwt mcp"
    " obstore opentelemetry paho psycopg pyarrow pyiceberg pymysql pyspark redis sqlalchemy"
    " starlette uvicorn uvloop websockets"
)
"""What the extras of pyproject.toml bring along."""
WITHOUT_EXTRAS = f"""
import sys
from importlib.abc import MetaPathFinder

hidden = {EXTRAS!r}.split()

class Hidden(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in hidden:
            raise ModuleNotFoundError("no module named " + name, name=name)

sys.meta_path.insert(0, Hidden())
"""


def run_without_extras(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_EXTRAS + program]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_command_loads_without_extras() -> None:
    run = run_without_extras(
        "from streamlog.cli.root import COMMANDS, load_command\n"
        "for name in COMMANDS:\n"
        "    load_command(name)\n"
        "print(len(COMMANDS))\n"
    )
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 30


def test_the_connect_service_names_its_extra() -> None:
    run = run_without_extras(
        "from streamlog.cli.root import main\nsys.argv = ['streamlog', 'connect']\nmain()\n"
    )
    assert run.returncode == 2, run.stderr
    assert "pip install 'streamlog-py[web]'" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_assistants_server_names_its_extra() -> None:
    run = run_without_extras(
        "from streamlog.cli.root import main\n"
        "sys.argv = ['streamlog', 'mcp', '--log', 'kafka://127.0.0.1:1']\nmain()\n"
    )
    assert run.returncode == 2, run.stderr
    assert "pip install 'streamlog-py[mcp]'" in run.stderr
    assert "Traceback" not in run.stderr
