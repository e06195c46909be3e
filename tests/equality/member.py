"""A worker of a random program, in its own process, which may be killed at any time.

The fork server has all modules loaded, so a worker starts in about 20 ms.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from pathlib import Path

from streamlog.cli.session import serve
from streamlog.errors import StreamlogError
from streamlog.replace import replace
from streamlog.worker import worker
from streamlog.worker.inputs import input_ends
from streamlog.worker.worker import Worker
from tests.equality import programs

SESSION_TIMEOUT_MS = 1_500
"""A killed or paused worker leaves the group after this time."""
CALM_MS = 3_600_000
"""No quiet partition advances, also on Kafka, whose topics have no `mark.quiet.ms`."""


class _Death:
    """Kills the process by SIGKILL at the nth step of this name in its commits."""

    def __init__(self, die_at: str) -> None:
        self._step, _, number = die_at.partition(":")
        self._left = int(number)

    def __call__(self, step: str) -> None:
        self._left -= step == self._step
        if not self._left:
            os.kill(os.getpid(), signal.SIGKILL)


def work(seed: int, run: str, log: str, directory: str, settings: dict[str, str]) -> None:
    """Run the program of this seed until SIGTERM, as `streamlog worker` does."""
    output = (Path(directory) / f"{os.getpid()}.log").open("w")
    os.dup2(output.fileno(), sys.stdout.fileno())
    os.dup2(output.fileno(), sys.stderr.fileno())
    logging.basicConfig(level=logging.DEBUG, format="%(asctime)s %(name)s %(message)s")
    worker.SESSION_TIMEOUT_MS = int(settings.pop("session_ms", SESSION_TIMEOUT_MS))
    worker.HEARTBEAT_INTERVAL_MS = worker.SESSION_TIMEOUT_MS // 7
    input_ends.UNMARKED_CALM_MS = CALM_MS
    worker.POLL_RECORDS_MAX = int(settings.pop("records_max", "7"))
    programs.pace_ms = float(settings.pop("pace_ms", "0"))
    die_at, instance_id = settings.pop("die_at", None), settings.pop("instance_id", None)
    made = programs.build(seed, run, state_dir=directory, **settings).app.program()
    if die_at is not None:
        made = replace(made, on_step=_Death(die_at))
    running = Worker(made, log_url=log, announce=lambda _start: None, instance_id=instance_id)
    try:
        serve(running.run, on_stop="")
    except* StreamlogError:
        logging.getLogger("member").exception("a worker ends")
        sys.exit(1)
