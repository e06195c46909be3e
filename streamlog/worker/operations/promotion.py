"""Promotion: a version that runs beside its app becomes the app, at one cut.

(1) The workers of both are held: they commit and leave their groups. (2) What both have committed
says how far their tasks have come; the cut is the time right behind, so nobody has been there. (3)
Both go on to it, each with the program that it has run all the time, and leave a snapshot. (4) The
version's is handed over to the app: its state, what waits between its stages and its offsets are
the app's from then on, in one transaction. So the output topics hold the rows of the app's former
program before the cut and those of the version behind it, none twice, and none is missing. (5) The
workers of both are told that they are done. The app's own snapshot is the way back: the former
program is handed over beside the app, comes up to it, and is promoted in the same way. Rule of the
file: until the one transaction is committed the app can go on as it was; who repeats a promotion
that was killed goes on where it had come to. Not done here: standing still (`halting`,
`standstill`), the transaction (`hand_over`), commands (`cli`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from msgspec import structs

from streamlog import repeated
from streamlog.clock import Clock, SystemClock
from streamlog.durations import moment
from streamlog.errors import TopologyError, UsageError
from streamlog.log import EMBEDDED, Log
from streamlog.snapshots import Snapshot, SnapshotStore
from streamlog.snapshots.manifest import MANIFEST_FILE
from streamlog.transport.security import Security
from streamlog.worker.operations.hand_over import HandOverResult, hand_over
from streamlog.worker.program import EXACTLY_ONCE, Program
from streamlog.worker.savepoint.savepoint_log import SavepointLog
from streamlog.worker.savepoint.task_savepoints import CutChoice, is_internal
from streamlog.worker.state.changelog_reader import offload
from streamlog.worker.topics.savepoint_messages import HELD_MS_MAX, SavepointCut, SavepointRequest
from streamlog.worker.topics.version_log import Promotion, read_hand_overs
from streamlog.worker.worker import Worker

ALONE_MS: Final = 2_000
"""After so long without another worker one is run here."""


class SubstituteWorker:
    """A worker that is run when it is needed. A context manager."""

    def __init__(
        self, program: Program, log_url: str, security: Security | None, clock: Clock
    ) -> None:
        self._program = program
        self._log_url = log_url
        self._security = security
        self._clock = clock
        self._stop = asyncio.Event()
        self._group = asyncio.TaskGroup()
        self._work: asyncio.Task[Exception | None] | None = None
        self._alone_since_ms: int | None = None

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        await self._group.__aexit__(None, None, None)

    async def help_if(self, *, is_alone: bool) -> None:
        """Run if nobody else has for a while.

        Raises:
            Exception: what the worker has failed on.
        """
        now_ms = self._clock.now_ms()
        if self._work is not None:
            if self._work.done():
                raise self._work.result() or UsageError(
                    f"the worker of {self._program.app_id!r} has ended by itself: repeat this"
                )
        elif not is_alone:
            self._alone_since_ms = None
        elif self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        elif now_ms - self._alone_since_ms >= ALONE_MS:
            self._work = self._group.create_task(self._run(), name="worker of the version")

    async def rest(self) -> None:
        """Stop, and leave the group.

        Raises:
            Exception: as `help_if`.
        """
        self._stop.set()
        work, self._work, self._alone_since_ms = self._work, None, None
        if work is not None and (failure := await work) is not None:
            raise failure
        self._stop.clear()

    async def _run(self) -> Exception | None:
        worker = Worker(
            self._program,
            log_url=self._log_url,
            announce=lambda _start: None,
            clock=self._clock,
            security=self._security,
        )
        try:
            await worker.run(self._stop)
        except Exception as error:  # noqa: BLE001 - raised where it is asked for
            return error
        return None


logger = repeated.logger(__name__)

LOOK_MS: Final = 200
PATIENCE_MS: Final = 10 * 60 * 1000
"""So long the app's workers may take to come to the cut."""
CUT_MS_MAX: Final = HELD_MS_MAX // 2
"""So long after the hold the cut may be said: workers must not have gone on by themselves."""
IDLE_MS: Final = 5_000
"""After so long without a worker of the app it is said that one is needed."""
BEFORE: Final = "before"
"""Behind the id of the snapshot of the app as it was, and in front of the name of its version."""

OnStep = Callable[[str], None]
"""Told what is done next, or waited for."""


def ignore_step(_step: str) -> None:
    """An `OnStep` that does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionResult:
    """What came of a promotion."""

    app_id: str
    version: str
    cut_ms: int
    """Rows before it are the former program's, those behind it the version's."""
    offsets: Mapping[tuple[str, int], int]
    """Where the app's workers go on, by partition."""
    rows: int
    """Of state."""
    before: str
    """URL of the snapshot of the app as it was at the cut: the way back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionStage:
    """Where promotions take place."""

    log: Log
    log_url: str
    place: str
    """Where snapshots are kept; all workers have to reach it."""
    security: Security | None = None
    clock: Clock = field(default_factory=SystemClock)
    patience_ms: int = PATIENCE_MS
    """So long the app's workers may take to come to the cut."""
    on_step: OnStep = ignore_step
    on_hand_over: OnStep = ignore_step
    """Told how far the transaction is, as `hand_over` tells it."""


async def promote(program: Program, version: str, stage: PromotionStage) -> PromotionResult:
    """Let a version that runs beside the app become the app.

    Args:
        program: of the version, as the app that it is to become.
        version: its name.
        stage: where.

    Raises:
        UsageError: there is no such version, or the app's workers do not come to the cut; the app
            goes on as it was.
        TopologyError: exactly-once is not guaranteed.
        StreamlogError: the log can't be reached or written to.
    """
    if program.guarantee != EXACTLY_ONCE:
        raise TopologyError(
            f"app {program.app_id!r} is {program.guarantee}: its rows have no one order, so there "
            "is no cut at which a version could take them over; stop it, and hand a history over"
        )
    ids = (program.app_id, program.beside(version).app_id)
    async with SavepointLog(stage.log, ids, stage.clock) as halts:
        return await _Promotion(program, version, stage, halts).run()


async def take_back(program: Program, stage: PromotionStage) -> PromotionResult:
    """Let the program that a version has replaced become the app again, by its snapshot.

    It is run beside the app from the cut at which it stood, comes up to the app, and is promoted:
    the rows that were written since stay, and it writes those behind the new cut.

    Args:
        program: the one from before the promotion.
        stage: where.

    Raises:
        UsageError: nothing was promoted, or as `promote`.
        CorruptData: the snapshot is gone.
        OffsetOutOfRange: the log does not hold what came since.
        StreamlogError: as `promote`.
    """
    handed = await read_hand_overs(stage.log, program.app_id)
    last = handed[-1].promotion if handed else None
    if last is None:
        raise UsageError(
            f"the state of app {program.app_id!r} does not come from a version that was promoted: "
            "there is nothing to be taken back"
        )
    version = f"{BEFORE}-{last.version}"
    stage.on_step(f"the program from before runs as version {version!r}, from {last.before}")
    await hand_over(
        program.beside(version),
        Snapshot.open(last.before),
        log=stage.log,
        mode="blue_green",
        is_embedded=stage.log_url.startswith(EMBEDDED),
        clock=stage.clock,
    )
    return await promote(program, version, stage)


async def cancel(program: Program, stage: PromotionStage) -> bool:
    """End a promotion that was killed and is not to go on; whether there was one.

    Raises:
        UsageError: it was done; only its end was not heard of. Repeat it.
    """
    app_id = program.app_id
    async with SavepointLog(stage.log, [app_id], stage.clock) as halts:
        halt = await halts.last(app_id)
    if halt is None or halt.lifted is not None:
        return False
    if any(each.snapshot == halt.id for each in await read_hand_overs(stage.log, app_id)):
        raise UsageError(f"{halt.hold.reason}: this was done; repeat the command to end it")
    async with SavepointLog(stage.log, (app_id, halt.id.rpartition("-")[0]), stage.clock) as halts:
        return await halts.lift(halt.id, "given up", "the promotion was cancelled")


class _Promotion:
    """One promotion."""

    def __init__(
        self, program: Program, version: str, stage: PromotionStage, halts: SavepointLog
    ) -> None:
        self._program = program
        self._version = version
        self._stage = stage
        self._clock = stage.clock
        self._on_step = stage.on_step
        self._halts = halts
        self._choice = CutChoice(stage.log)
        beside = program.beside(version)
        self._app, self._other = program.app_id, beside.app_id
        self._substitute = SubstituteWorker(beside, stage.log_url, stage.security, stage.clock)
        self._deadline_ms = self._clock.now_ms() + stage.patience_ms

    async def run(self) -> PromotionResult:
        cuts = await self._under_way()
        halt_id = f"{self._other}-{uuid4().hex[:8]}" if cuts is None else cuts[0].id
        try:
            async with self._substitute:
                if cuts is None:
                    await self._halts.prepare()
                    await self._catch_up()
                    cuts = await self._halt(halt_id)
                await self._stand(cuts)
            done = await self._hand_over(cuts)
        except BaseException as error:
            told = f"version {self._version!r} was not promoted: {error or type(error).__name__}"
            await asyncio.shield(self._lift_if_undone(halt_id, told))
            raise
        told = (
            f"version {self._version!r} is app {self._app!r} from now on: end the workers of the "
            "program before, and start those of the new one"
        )
        await self._halts.lift(halt_id, "promoted", told)
        return PromotionResult(
            app_id=self._app,
            version=self._version,
            cut_ms=cuts[0].until_ms,
            offsets=done.offsets,
            rows=done.rows,
            before=cuts[0].url,
        )

    async def _under_way(self) -> tuple[SavepointCut, SavepointCut] | None:
        """The cuts of this promotion, if it was begun before and has come so far.

        Raises:
            UsageError: another one is under way, or there is no such version.
        """
        if not await self._stage.log.admin().group_offsets(self._other):
            raise UsageError(
                f"app {self._app!r} has no version {self._version!r} that has run: hand a snapshot "
                f"over to it first (hand-over SNAPSHOT --version {self._version})"
            )
        ours, theirs = [await self._halts.last(app_id) for app_id in (self._app, self._other)]
        if ours is None or not ours.is_in_force(self._clock.wall_ms()) or ours.cut is None:
            return None
        if not ours.id.startswith(f"{self._other}-"):
            raise UsageError(
                f"the workers of {self._app!r} stand still for something else: "
                f"{ours.hold.reason}; repeat that, or end it: promote --cancel"
            )
        if theirs is None or theirs.id != ours.id:
            await self._halts.say(self._other, ours.hold)
        cut = structs.replace(ours.cut, url=self._url(ours.id))
        await self._halts.say(self._other, cut)
        return ours.cut, cut

    async def _catch_up(self) -> None:
        """The version comes near the end of the log before anybody is held."""
        limit = self._program.policy.acceptable_lag
        is_told = False
        while (lag := await self._choice.lag(self._other)) > limit:
            if not is_told:
                self._on_step(f"version {self._version!r} is {lag} records behind: catching up")
                is_told = True
            await self._substitute.help_if(is_alone=not await self._halts.members(self._other))
            await self._pause(f"version {self._version!r} is {lag} records behind")
        await self._substitute.rest()

    async def _halt(self, halt_id: str) -> tuple[SavepointCut, SavepointCut]:
        """Hold both, find the time that neither has come to, and send them there."""
        ids = (self._app, self._other)
        reason = f"version {self._version!r} is to be promoted to app {self._app!r}"
        self._on_step("the workers of both commit and stand still")
        hold = SavepointRequest(id=halt_id, wall_ms=self._clock.wall_ms(), reason=reason)
        until_ms = self._clock.now_ms() + CUT_MS_MAX
        for app_id in ids:
            await self._halts.say(app_id, hold)
        for app_id in ids:
            await self._left(app_id, until_ms)
        at_ms = max([await self._choice.come_to(app_id) for app_id in ids]) + 1
        own = [name for name in self._program.sources if not is_internal(name, self._app)]
        ends = await self._choice.ends(ids, own)
        if self._clock.now_ms() > until_ms:
            raise UsageError("it took too long to find out where both have come to: try again")
        urls = (f"{self._url(halt_id)}-{BEFORE}", self._url(halt_id))
        ours, theirs = (
            SavepointCut(id=halt_id, until_ms=at_ms, ends=ends, url=url) for url in urls
        )
        await self._halts.say(self._app, ours)
        await self._halts.say(self._other, theirs)
        return ours, theirs

    async def _left(self, app_id: str, deadline_ms: int) -> None:
        """Wait until nobody is in a group."""
        while members := await self._halts.members(app_id):
            await self._pause(f"{members} workers of {app_id!r} do not stand still", deadline_ms)

    async def _stand(self, cuts: tuple[SavepointCut, SavepointCut]) -> None:
        """Wait until both stand at the cut, and have left their groups."""
        self._on_step(f"both go on to {moment(cuts[0].until_ms).isoformat()}, and no further")
        alone_since_ms: int | None = self._clock.now_ms()
        for app_id, cut in zip((self._app, self._other), cuts, strict=True):
            while not await offload(partial(SnapshotStore(cut.url).has, MANIFEST_FILE)):
                if await self._halts.members(self._app):
                    alone_since_ms = None
                elif alone_since_ms and self._clock.now_ms() - alone_since_ms > IDLE_MS:
                    alone_since_ms = None
                    self._on_step(
                        f"nobody runs app {self._app!r}: start its workers, with the program that "
                        "it has run all the time; they go to the cut and stand still"
                    )
                await self._substitute.help_if(is_alone=not await self._halts.members(self._other))
                await self._refuse_lifted()
                await self._pause(f"{app_id!r} has not come to the cut")
        await self._substitute.rest()
        for app_id in (self._app, self._other):
            await self._left(app_id, self._deadline_ms)

    async def _refuse_lifted(self) -> None:
        for app_id in (self._app, self._other):
            halt = await self._halts.last(app_id)
            if halt is not None and halt.lifted is not None:
                raise UsageError(f"it was ended: {halt.lifted.told}")

    async def _hand_over(self, cuts: tuple[SavepointCut, SavepointCut]) -> HandOverResult:
        self._on_step(f"the state of {self._other!r} becomes that of {self._app!r}")
        ours, theirs = [Snapshot.open(cut.url) for cut in cuts]
        mine = ours.offsets
        for at, offset in theirs.offsets.items():
            if mine.get(at, offset) != offset:
                raise UsageError(
                    f"{self._app!r} stands at offset {mine[at]} of {at[0]}-{at[1]}, and "
                    f"{self._other!r} at {offset}: somebody did not stand still; try again"
                )
        return await hand_over(
            self._program,
            theirs,
            log=self._stage.log,
            mode="promote",
            promotion=Promotion(version=self._version, before=cuts[0].url),
            is_embedded=self._stage.log_url.startswith(EMBEDDED),
            clock=self._clock,
            on_step=self._stage.on_hand_over,
        )

    async def _lift_if_undone(self, halt_id: str, told: str) -> None:
        """Let both go on as they were."""
        done = await read_hand_overs(self._stage.log, self._app)
        if not any(each.snapshot == halt_id for each in done):
            await self._halts.lift(halt_id, "given up", told)

    def _url(self, halt_id: str) -> str:
        return f"{self._stage.place.rstrip('/')}/{halt_id}"

    async def _pause(self, why: str, deadline_ms: int | None = None) -> None:
        if self._clock.now_ms() > (deadline_ms or self._deadline_ms):
            raise UsageError(f"{why}, and is not waited for any longer; the app goes on as it was")
        await asyncio.sleep(LOOK_MS / 1000)
