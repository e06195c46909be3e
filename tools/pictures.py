"""`python -m tools.pictures`: pictures of the console for the README, by Chromium.

A worker runs the program of docs/tutorial.md on five hours of sales; Chromium opens its console.
Pixels differ from machine to machine, so no test compares them: look at what has changed.
"""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = {"topology": "topology"}
SIZE: Final = "1400,860"
LOAD_MS: Final = 20_000
"""The pages stay open for updates, so Chromium has to be told when to take the picture."""


def main() -> None:
    """Draw the pictures into docs/images."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("there is no chromium on the PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        _write_files(here)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        app = [sys.executable, "-m", "streamlog", "-A", "bakery"]
        worker = subprocess.Popen(
            [*app, "worker", "--web", f"127.0.0.1:{port}"],
            cwd=here,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_for_web(worker)
            for topic, file in (("prices", "prices.txt"), ("sales", "many.txt")):
                send = ["send", topic, "--file", file, "--key-separator", " "]
                subprocess.run([*app, *send], cwd=here, check=True)
            for name, page in PAGES.items():
                _draw(chromium, f"http://127.0.0.1:{port}/console/{page}", name)
        finally:
            worker.kill()
            worker.communicate()


def _write_files(here: Path) -> None:
    """Write the last program of the tutorial, its prices, and its sales."""
    text = (ROOT / "docs/tutorial.md").read_text()
    for name, body in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", text, re.DOTALL):
        (here / name).write_text(body)
    prices = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (here / "prices.txt").write_text(next(each for each in prices if "cents" in each))
    with (here / "many.txt").open("w") as file:
        subprocess.run([sys.executable, "many.py"], cwd=here, check=True, stdout=file)


def _wait_for_web(worker: subprocess.Popen[str]) -> None:
    for line in worker.stdout or ():
        if line.startswith("web"):
            return
    sys.exit("the worker ended before it served its console: its error is above")


def _draw(chromium: str, url: str, name: str) -> None:
    picture = ROOT / f"docs/images/console-{name}.png"
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    shot = [f"--timeout={LOAD_MS}", f"--window-size={SIZE}", f"--screenshot={picture}"]
    subprocess.run([chromium, *options, *shot, url], check=True, capture_output=True)


if __name__ == "__main__":
    main()
