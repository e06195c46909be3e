"""Promotion: a version that runs next to its app becomes the app, at one cut.

1. A savepoint is requested: the workers of both commit and leave their groups.
2. The commits of both say which stream time their tasks have reached. The cut is one millisecond
   later, so no task is beyond it.
3. The workers of both process up to the cut, each with its own program, and write a snapshot.
4. The version's snapshot is handed over to the app: in one transaction its state, its records
   between stages and its offsets become the app's. The output topics now hold the rows of the
   former program before the cut and the version's rows after it, each exactly once.
5. The savepoint is released, and the workers of both end.

The app's own snapshot is the way back: the former program starts from it as a version, catches up
with the app, and is promoted in the same way.

Rule: until the transaction in step 4 commits, the app can continue as it was. A promotion that was
killed continues where it stopped when it is repeated. Not done here: savepoints (`savepoint/`), the
transaction (`hand_over`), and commands (`cli`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self
from uuid import uuid4

from streamlog import repeated
from streamlog.clock import Clock, SystemClock
from streamlog.durations import moment
from streamlog.errors import TopologyError, UsageError, quantity
from streamlog.log import EMBEDDED, Log
from streamlog.replace import replace
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
"""How long a version may have no worker before one is started here."""


class SubstituteWorker:
    """A worker of the version that runs in this process if there is no other; a context manager."""

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
        # Without the error, for which the group would cancel the worker: it has to commit, and to
        # leave its consumer group.
        await self._group.__aexit__(None, None, None)

    async def help_if(self, *, is_alone: bool) -> None:
        """Start the worker once `is_alone` has held for `ALONE_MS`.

        Raises:
            Exception: the error that the worker ended with.
        """
        now_ms = self._clock.now_ms()
        if self._work is not None:
            # Too early: only `rest` and the end of the block stop it.
            if self._work.done():
                raise self._work.result() or UsageError(
                    f"the worker of {self._program.app_id!r} ended early: repeat the command"
                )
        elif not is_alone:
            self._alone_since_ms = None
        elif self._alone_since_ms is None:
            self._alone_since_ms = now_ms
        elif now_ms - self._alone_since_ms >= ALONE_MS:
            self._work = self._group.create_task(self._run(), name="worker of the version")

    async def rest(self) -> None:
        """Stop the worker; it leaves the group.

        Raises:
            Exception: the error that the worker ended with.
        """
        self._stop.set()
        work, self._work, self._alone_since_ms = self._work, None, None
        if work is not None and (failure := await work) is not None:
            raise failure
        # For a later `help_if`.
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
        except Exception as error:  # noqa: BLE001 - raised by `help_if` or `rest`
            return error
        return None


logger = repeated.logger(__name__)

LOOK_MS: Final = 200
PATIENCE_MS: Final = 10 * 60 * 1000
"""How long the app's workers may take to reach the cut."""
CUT_MS_MAX: Final = HELD_MS_MAX // 2
"""The longest time from request to cut. Workers resume by themselves after twice this time."""
IDLE_MS: Final = 5_000
"""How long the app may have no worker before the user is asked to start one."""
BEFORE: Final = "before"
"""Suffix of the URL of the app's own snapshot, and prefix of the version that starts from it."""

OnStep = Callable[[str], None]
"""Called with a description of what the promotion does next, or waits for."""


def ignore_step(_step: str) -> None:
    """Do nothing; the default `OnStep`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionResult:
    """The result of a promotion."""

    app_id: str
    version: str
    cut_ms: int
    """The cut, in milliseconds since 1970: earlier rows are the former program's, later ones the
    version's."""
    offsets: Mapping[tuple[str, int], int]
    """Partition to the offset at which the app's workers continue."""
    rows: int
    """The number of rows of state."""
    before: str
    """The URL of the snapshot of the former app at the cut, for the way back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionStage:
    """The log and the settings of promotions."""

    log: Log
    log_url: str
    snapshots_url: str
    """The directory or URL of snapshots; all workers need access to it."""
    security: Security | None = None
    clock: Clock = field(default_factory=SystemClock)
    patience_ms: int = PATIENCE_MS
    """How long the app's workers may take to reach the cut."""
    on_step: OnStep = ignore_step
    on_hand_over: OnStep = ignore_step
    """Called with the steps of the transaction, as by `hand_over`."""


async def promote(program: Program, version: str, stage: PromotionStage) -> PromotionResult:
    """Make a version that runs next to the app the app.

    Args:
        program: the version's program, under the id of the app.
        version: the name of the version.
        stage: the log and the settings.

    Raises:
        UsageError: there is no such version, or the app's workers do not reach the cut; the app
            continues as it was.
        TopologyError: the app's guarantee is not exactly-once.
        StreamlogError: the log can't be reached or written to.
    """
    program.refuse_patterns("a promotion")
    if program.guarantee != EXACTLY_ONCE:
        raise TopologyError(
            f"the guarantee of app {program.app_id!r} is {program.guarantee}: its rows have no "
            "single order, so there is no cut at which a version could continue; stop the app, and "
            "hand over a history instead"
        )
    ids = (program.app_id, program.as_version(version).app_id)
    async with SavepointLog(stage.log, ids, stage.clock) as savepoints:
        return await _Promotion(program, version, stage, savepoints).run()


async def take_back(program: Program, stage: PromotionStage) -> PromotionResult:
    """Make the program that a version has replaced the app again.

    The former program starts from its snapshot as a version next to the app, catches up, and is
    promoted at a new cut. Rows that the app has written up to that cut stay.

    Args:
        program: the program from before the promotion.
        stage: the log and the settings.

    Raises:
        UsageError: no version was promoted, or the app's workers do not reach the cut.
        CorruptData: a file of the snapshot is missing or damaged.
        OffsetOutOfRange: the log no longer holds all records since the snapshot.
        StreamlogError: the log can't be reached or written to.
    """
    handed = await read_hand_overs(stage.log, program.app_id)
    last = handed[-1].promotion if handed else None
    if last is None:
        raise UsageError(
            f"app {program.app_id!r} is not a promoted version: there is no promotion to undo"
        )
    version = f"{BEFORE}-{last.version}"
    stage.on_step(f"the former program starts as version {version!r} from {last.before}")
    await hand_over(
        program.as_version(version),
        Snapshot.open(last.before),
        log=stage.log,
        mode="blue_green",
        is_embedded=stage.log_url.startswith(EMBEDDED),
        clock=stage.clock,
    )
    return await promote(program, version, stage)


async def cancel(program: Program, stage: PromotionStage) -> bool:
    """End a promotion that was killed; returns whether there was one.

    Raises:
        UsageError: its transaction is committed, so it can only be completed: repeat it.
    """
    app_id = program.app_id
    async with SavepointLog(stage.log, [app_id], stage.clock) as savepoints:
        last = await savepoints.last(app_id)
    if last is None or last.release is not None:
        return False
    if any(each.snapshot == last.id for each in await read_hand_overs(stage.log, app_id)):
        raise UsageError(
            f"{last.request.reason}: the promotion is committed and can't be cancelled; repeat "
            "the command `promote` to complete it"
        )
    ids = (app_id, last.id.rpartition("-")[0])
    async with SavepointLog(stage.log, ids, stage.clock) as savepoints:
        return await savepoints.release(last.id, "given up", "the promotion was cancelled")


class _Promotion:
    """One promotion, new or repeated."""

    def __init__(
        self, program: Program, version: str, stage: PromotionStage, savepoints: SavepointLog
    ) -> None:
        self._program = program
        self._version = version
        self._stage = stage
        self._clock = stage.clock
        self._on_step = stage.on_step
        self._savepoints = savepoints
        self._choice = CutChoice(stage.log)
        other = program.as_version(version)
        self._app, self._other = program.app_id, other.app_id
        self._substitute = SubstituteWorker(other, stage.log_url, stage.security, stage.clock)
        self._deadline_ms = self._clock.now_ms() + stage.patience_ms

    async def run(self) -> PromotionResult:
        """Promote the version; see `promote`."""
        cuts = await self._resume()
        # The id names the version: a repeated command recognizes its own savepoint by it.
        savepoint_id = f"{self._other}-{uuid4().hex[:8]}" if cuts is None else cuts[0].id
        try:
            async with self._substitute:
                if cuts is None:
                    await self._savepoints.prepare()
                    await self._catch_up()
                    cuts = await self._request(savepoint_id)
                await self._await_cut(cuts)
            done = await self._hand_over(cuts)
        except BaseException as error:
            reason = f"version {self._version!r} was not promoted: {error or type(error).__name__}"
            # Shielded: a cancelled command must still let the workers continue.
            await asyncio.shield(self._release_if_undone(savepoint_id, reason))
            raise
        message = (
            f"version {self._version!r} is now app {self._app!r}: stop the workers of the former "
            "program, and start those of the new one"
        )
        await self._savepoints.release(savepoint_id, "promoted", message)
        return PromotionResult(
            app_id=self._app,
            version=self._version,
            cut_ms=cuts[0].until_ms,
            offsets=done.offsets,
            rows=done.rows,
            before=cuts[0].url,
        )

    async def _resume(self) -> tuple[SavepointCut, SavepointCut] | None:
        """Return the cuts of the app and of the version if this promotion had set them, or None.

        Raises:
            UsageError: another promotion is under way, or there is no such version.
        """
        if not await self._stage.log.admin().group_offsets(self._other):
            raise UsageError(
                f"app {self._app!r} has no version {self._version!r} that has run: hand a snapshot "
                f"over to it first (hand-over SNAPSHOT --version {self._version})"
            )
        ours, theirs = [await self._savepoints.last(app_id) for app_id in (self._app, self._other)]
        if ours is None or not ours.is_in_force(self._clock.wall_ms()) or ours.cut is None:
            return None
        if not ours.id.startswith(f"{self._other}-"):
            raise UsageError(
                f"the workers of {self._app!r} are at a savepoint for another purpose: "
                f"{ours.request.reason}; repeat that command, or end it with promote --cancel"
            )
        # The command was killed after the app's cut: the version may lack the request, the cut, or
        # both. A repeated message changes nothing.
        if theirs is None or theirs.id != ours.id:
            await self._savepoints.write(self._other, ours.request)
        cut = replace(ours.cut, url=self._url(ours.id))
        await self._savepoints.write(self._other, cut)
        return ours.cut, cut

    async def _catch_up(self) -> None:
        """Wait until the version is near the end of the log, so that the app stops only briefly."""
        limit = self._program.policy.acceptable_lag
        is_reported = False
        while (lag := await self._choice.lag(self._other)) > limit:
            if not is_reported:
                self._on_step(
                    f"version {self._version!r} is {quantity(lag, 'record')} behind: catching up"
                )
                is_reported = True
            await self._help()
            await self._pause(f"version {self._version!r} is {quantity(lag, 'record')} behind")
        await self._substitute.rest()

    async def _request(self, savepoint_id: str) -> tuple[SavepointCut, SavepointCut]:
        """Stop the workers of both, choose a cut that no task has reached, and announce it."""
        ids = (self._app, self._other)
        reason = f"version {self._version!r} is being promoted to app {self._app!r}"
        self._on_step("the workers of the app and the version commit and wait")
        request = SavepointRequest(id=savepoint_id, wall_ms=self._clock.wall_ms(), reason=reason)
        until_ms = self._clock.now_ms() + CUT_MS_MAX
        for app_id in ids:
            await self._savepoints.write(app_id, request)
        # Only when both groups are empty are the commits final.
        for app_id in ids:
            await self._await_empty(app_id, until_ms)
        # One millisecond later: a task that has processed a record of the latest time is not beyond
        # the cut.
        at_ms = max([await self._choice.latest_time(app_id) for app_id in ids]) + 1
        # A source without a committed offset has an end, too.
        own = [name for name in self._program.sources if not is_internal(name, self._app)]
        ends = await self._choice.ends(ids, own)
        # Workers resume by themselves after twice this time (`HELD_MS_MAX`): a later cut could find
        # them beyond it.
        if self._clock.now_ms() > until_ms:
            raise UsageError(
                "finding the stream times of the app and the version took too long: try again"
            )
        urls = (f"{self._url(savepoint_id)}-{BEFORE}", self._url(savepoint_id))
        ours, theirs = (
            SavepointCut(id=savepoint_id, until_ms=at_ms, ends=ends, url=url) for url in urls
        )
        # The app's cut first: `_resume` recognizes a killed promotion by it.
        await self._savepoints.write(self._app, ours)
        await self._savepoints.write(self._other, theirs)
        return ours, theirs

    async def _await_empty(self, app_id: str, deadline_ms: int) -> None:
        """Wait until all workers have left a group."""
        while members := await self._savepoints.members(app_id):
            text = f"{quantity(members, 'worker')} of {app_id!r} did not stop"
            await self._pause(text, deadline_ms)

    async def _await_cut(self, cuts: tuple[SavepointCut, SavepointCut]) -> None:
        """Wait until both have written their snapshots, and have left their groups."""
        self._on_step(
            f"app and version process records up to {moment(cuts[0].until_ms).isoformat()}"
        )
        alone_since_ms: int | None = self._clock.now_ms()
        for app_id, cut in zip((self._app, self._other), cuts, strict=True):
            while not await offload(partial(SnapshotStore(cut.url).has, MANIFEST_FILE)):
                if await self._savepoints.members(self._app):
                    alone_since_ms = None
                elif alone_since_ms and self._clock.now_ms() - alone_since_ms > IDLE_MS:
                    alone_since_ms = None
                    self._on_step(
                        f"app {self._app!r} has no worker: start its workers with the program that "
                        "it has run so far; they process up to the cut and wait"
                    )
                await self._help()
                await self._refuse_released()
                await self._pause(f"{app_id!r} did not reach the cut")
        await self._substitute.rest()
        for app_id in (self._app, self._other):
            await self._await_empty(app_id, self._deadline_ms)

    async def _help(self) -> None:
        """Run a worker of the version here if it has no other."""
        is_alone = not await self._savepoints.members(self._other)
        await self._substitute.help_if(is_alone=is_alone)

    async def _refuse_released(self) -> None:
        for app_id in (self._app, self._other):
            last = await self._savepoints.last(app_id)
            if last is not None and last.release is not None:
                raise UsageError(f"the savepoint was ended: {last.release.message}")

    async def _hand_over(self, cuts: tuple[SavepointCut, SavepointCut]) -> HandOverResult:
        self._on_step(f"the state of {self._other!r} becomes the state of {self._app!r}")
        ours, theirs = [Snapshot.open(cut.url) for cut in cuts]
        mine = ours.offsets
        for at, offset in theirs.offsets.items():
            # Both have stopped at one cut, so they agree about each source that both read.
            if mine.get(at, offset) != offset:
                raise UsageError(
                    f"{self._app!r} is at offset {mine[at]} of {at[0]}-{at[1]}, and "
                    f"{self._other!r} at {offset}: a worker did not stop at the cut; try again"
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

    async def _release_if_undone(self, savepoint_id: str, message: str) -> None:
        """Let the workers of both continue, unless the transaction is committed."""
        done = await read_hand_overs(self._stage.log, self._app)
        if not any(each.snapshot == savepoint_id for each in done):
            await self._savepoints.release(savepoint_id, "given up", message)

    def _url(self, savepoint_id: str) -> str:
        return f"{self._stage.snapshots_url.rstrip('/')}/{savepoint_id}"

    async def _pause(self, reason: str, deadline_ms: int | None = None) -> None:
        if self._clock.now_ms() > (deadline_ms or self._deadline_ms):
            raise UsageError(f"timed out: {reason}; the app continues as it was")
        await asyncio.sleep(LOOK_MS / 1000)
