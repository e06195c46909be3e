"""AppWatch: looks at the worker of this process again and again, for the pages of its app.

Rule of the module: a look reads what the worker counts anyway, and asks no other process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from streamlog.clock import Clock
from streamlog.console.app_pages.app_sight import (
    ROUNDS_MAX,
    AppSight,
    WorkChange,
    node_sights,
    rounds_between,
    topic_sights,
)
from streamlog.worker.worker_sites import WorkerView

LOOK_S: Final = 1.0
PAUSE_SHARE: Final = 50
"""A look at a worker with many tasks takes at most a fiftieth of the time."""


class AppWatch:
    """Looks at one worker. `run` does so until it is cancelled."""

    def __init__(self, view: WorkerView, clock: Clock) -> None:
        self._view, self._clock = view, clock
        self._looked_ms = 0
        self.sight = AppSight()
        """The newest look."""
        self.rounds = deque[WorkChange](maxlen=ROUNDS_MAX)
        """What has changed since the worker's start, oldest first."""

    async def run(self) -> None:
        """Look at the worker, until cancelled."""
        while True:
            began_ms = self._clock.now_ms()
            self._look(began_ms)
            took_s = (self._clock.now_ms() - began_ms) / 1_000
            await asyncio.sleep(max(LOOK_S, PAUSE_SHARE * took_s))

    def _look(self, now_ms: int) -> None:
        view, before = self._view, self.sight
        state, loop, peers = view.loop.state(), view.loop, view.peers
        # Only for what hangs: a healthy worker has hundreds of inputs, and nothing to explain.
        sights = loop.sights() if state.stalled_ms else {}
        passed_s = (now_ms - self._looked_ms) / 1_000
        earlier = before.state if before.at_ms else None
        self.sight = AppSight(
            at_ms=self._clock.wall_ms(),
            state=state,
            nodes=node_sights(earlier, state, passed_s),
            topics=topic_sights(state, loop.topology, loop.paused),
            peers=tuple(peers.all),
            process=peers.process,
            leader=peers.leader_process,
            stalled={
                who: (sights[who], loop.reason(who)) for who in state.stalled_ms if who in sights
            },
        )
        self._looked_ms = now_ms
        changed = rounds_between(before, self.sight, peers.rounds)
        if changed is not None:
            self.rounds.append(changed)
