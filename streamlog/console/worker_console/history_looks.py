"""HistoryLooks: reads the notes of an app's histories, and its hand-overs, for the pages.

Rule of the module: notes may be in an object store, so they are read on a thread, and what was read
is shown for twenty times as long as it took.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from streamlog.clock import Clock
from streamlog.console.app_pages.history_pages import HandOverRow, JobLook, histories, history
from streamlog.console.page_views import Parts, Query, no_page
from streamlog.console.pages.page_layout import View
from streamlog.errors import StreamlogError
from streamlog.replace import replace
from streamlog.snapshots import SnapshotStore
from streamlog.snapshots.noted_jobs import JobNotes
from streamlog.worker.program import WorkerStart
from streamlog.worker.state.changelog_reader import offload
from streamlog.worker.topics.version_log import hand_over_topic, read_hand_overs

KEPT_SHARE: Final = 20
KEPT_MS: Final = 1_000
"""What was read is shown for at least as long."""
VERSIONS_MAX: Final = 20
"""Versions of the app whose hand-overs are read."""
_ENDING: Final = hand_over_topic("")


class HistoryLooks:
    """The histories of one app."""

    def __init__(self, start: WorkerStart, clock: Clock) -> None:
        program = start.program
        self._app_id, self._log, self._clock = program.app_id, start.log, clock
        store = SnapshotStore(program.histories_url(start.log_url))
        self._where, self._notes = store.url, JobNotes(store)
        self._found: list[JobLook] = []
        self._until_ms = 0
        self._looking = asyncio.Lock()

    async def view(self, parts: Parts, query: Query) -> View:
        """Return a page."""
        found = await self._looks()
        match parts:
            case ():
                return histories(found, query, self._where)
            case (name,):
                job = next((each for each in found if each.note.id == name), None)
                if job is not None:
                    compared = await offload(lambda: self._notes.comparisons(name))
                    job = replace(job, comparisons=tuple(compared))
                return history(job, name, query)
            case _:
                return no_page()

    async def _looks(self) -> list[JobLook]:
        # One at a time: pages that come meanwhile are shown what the first one has read.
        async with self._looking:
            began_ms = self._clock.now_ms()
            if began_ms >= self._until_ms:
                jobs = await offload(lambda: self._notes.jobs(self._app_id))
                done = await self._hand_overs() if jobs else {}
                wall_ms = self._clock.wall_ms()
                self._found = [JobLook(each, wall_ms, done.get(each.id, ())) for each in jobs]
                now_ms = self._clock.now_ms()
                self._until_ms = now_ms + max(KEPT_MS, KEPT_SHARE * (now_ms - began_ms))
            return self._found

    async def _hand_overs(self) -> Mapping[str, tuple[HandOverRow, ...]]:
        """Return the hand-overs to the app and its versions, by snapshot."""
        found = defaultdict[str, tuple[HandOverRow, ...]](tuple)
        names = [
            each.name
            for each in await self._log.admin().list_topics()
            if each.name.startswith(self._app_id) and each.name.endswith(_ENDING)
        ]
        for name in names[:VERSIONS_MAX]:
            app_id = name.removesuffix(_ENDING)
            # One that can't be read hides no job: a newer streamlog may have written it.
            with suppress(StreamlogError):
                for each in await read_hand_overs(self._log, app_id):
                    found[each.snapshot] += (HandOverRow(app_id, each.wall_ms),)
        return found
