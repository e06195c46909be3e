"""ProcessorStep: an object of the user's at work, with its stores, its timers and stream time.

Records go through one by one, in the order of the task; what the object forwards is collected
and handed on as a batch. Rules of the file:

1. A record that is forwarded stands where the record in hand stands: it carries its place in
   the source, its source's stream time and its headers. So a task downstream drops what comes
   again after a crash, and judges lateness as if the processor were a `map`. What a timer or a
   punctuation forwards is a source of its own, with the numbers of the firings.
2. Stream time is the minimum over the inputs, each as far as it had come at this record in the
   order of the task; it is part of the progress, so a restart goes on with the same one.
3. A record moves stream time first, and what that makes due fires, at its own time, before the
   record is processed: so what an object sees is a function of the order of the task alone.
   Stream time may be behind the record's own source, as other sources are. The timers of the
   record's key fire before the record all the same, up to the time of its source: the sequence
   of timers and records of a key does not depend on how far other sources have come.
4. What looks like chance is a function of the task and the place of the record (`chance`).

An error in `process` is that of the record; with an error policy nothing of what it has done
with the record stays. Not done here: checking the class (`dsl/processor`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from streamlog.durations import moment
from streamlog.errors import ProcessingError
from streamlog.processing.columns import Batch, Feed, Origin
from streamlog.processing.exits import exit_failure
from streamlog.processing.node_time import NodeTime
from streamlog.processing.processor_context import Forwarded, TaskContext, TaskTimers
from streamlog.processing.processor_store import BoundStore, ExpiringBoundStore
from streamlog.processing.rows_at_hand import TaskRows
from streamlog.processing.step import Step
from streamlog.processing.timers import Alarm, Alarms, KeyTimers
from streamlog.processing.undo import UndoLog
from streamlog.tables.at_hand import at_hand
from streamlog.tables.memory import MemoryStore
from streamlog.tables.store import KeyValueStore, NamedStore
from streamlog.tables.whole_store import WholeStore
from streamlog.topology import ClockName, ExpiringProcessorStore, Process, ProcessorStore
from streamlog.windows.emit import FAR_MS, UNKNOWN_MS, StreamTime

FIRINGS_MAX = 1_000
"""What so many firings have forwarded is handed on before there is more."""


class _Firings:
    """What the alarms of one clock forward, until it is handed on: a number and a time each."""

    def __init__(self, alarms: Alarms) -> None:
        self.alarms = alarms
        self.numbers: list[int] = []
        self.times: list[int] = []

    def origin(self) -> Origin:
        """Where it comes from; the next ones begin anew."""
        numbers, self.numbers = self.numbers, []
        times, self.times = self.times, []
        return Origin.of_rows(self.alarms.feed, numbers, times)


class ProcessorStep(Step):
    """An object of the user's at work."""

    section = "processors"

    def __init__(
        self,
        node: Process,
        store: KeyValueStore,
        *,
        app_id: str,
        partition: int,
        feeds: Sequence[Feed],
        is_watched: bool,
        rows: TaskRows | None = None,
    ) -> None:
        """A step that has made its object.

        Args:
            node: what it is.
            store: the task's.
            app_id: the app's.
            partition: the task's.
            feeds: where its time comes from.
            is_watched: another processor of the task needs to know the time of every record.
            rows: those of tables that are at hand.
        """
        super().__init__(node.name)
        self._node = node
        self.node_time = NodeTime(feeds)
        self._feeds = self.node_time.feeds
        self._is_watched = is_watched
        self._stream = StreamTime(feed.source for feed in self._feeds)
        self._undo = UndoLog(store) if _has_policy(node) else None
        store = self._undo or store
        passing: KeyValueStore = MemoryStore()
        self._passing = UndoLog(passing) if _has_policy(node) else None
        self._event = _firings(node, store, "event", partition)
        self._wall = _firings(node, store, "wall", partition)
        self.clock = self._event.alarms.feed
        """Tells how far this processor has come."""
        timers = {name: firings.alarms.timers for name, firings in self._firings.items()}
        self._timers = TaskTimers(node, timers)
        self._context = TaskContext(app_id, node.name, self._timers)
        self._rows = rows
        if rows is not None:
            rows.bind(lambda: self._context.written_ms, store)
        self._whole: list[WholeStore] = []
        self._stores = {
            each.attribute: self._bound(
                each, store if each.has_changelog else self._passing or passing
            )
            for each in node.stores
        }
        self._expiring = [
            each for each in self._stores.values() if isinstance(each, ExpiringBoundStore)
        ]
        self._last: tuple[Feed | None, int] = (None, 0)
        self._index = 0
        self._is_timed = bool(node.feeds)
        self._has_begun = False
        self._has_fired = False
        self._processor = node.make()
        self._processor.ctx = self._context
        for attribute, bound in self._stores.items():
            setattr(self._processor, attribute, bound)

    @property
    def clocks(self) -> Sequence[Feed]:
        """How far this processor has come."""
        return (self.clock,)

    @property
    def own_feeds(self) -> list[Feed]:
        """The sources that its firings are."""
        feeds = (firings.alarms.feed for firings in self._firings.values())
        return [feed for feed in feeds if feed.source[0] in self._node.feeds]

    @property
    def next_wall_ms(self) -> int:
        """Nothing is due on the clock on the wall before this."""
        return self._wall.alarms.next_ms

    def waits_for(self) -> Iterable[tuple[Feed, int]]:
        """When the next timer of event time is due.

        Punctuations come as time goes on, and are no reason for it to: they have no end.
        """
        timers = self._event.alarms.timers
        next_ms = FAR_MS if timers is None else timers.first_ms
        return () if next_ms == FAR_MS else self.needs(next_ms)

    def needs(self, time_ms: int) -> Iterable[tuple[Feed, int]]:
        """It tells its time as it is."""
        return [(feed, time_ms) for feed in self._feeds]

    def init(self) -> None:
        """The state is there.

        Raises:
            ProcessingError: the user's method raised.
        """
        with at_hand(self._rows):
            self._call("init()", self._processor.init)

    def process(self, batch: Batch) -> None:
        """Hand the object one record after the other; hand on what it forwards."""
        batch = self.node_time.of(batch)
        with at_hand(self._rows):
            self._process_all(batch)

    def _process_all(self, batch: Batch) -> None:
        context = self._context
        origin, positions, alarms = batch.origin, batch.origin.positions, self._event.alarms
        feed = origin.feed if origin.feed in self._feeds else None
        held_ms = FAR_MS if feed is None else feed.held_ms(self._node.idle_after_ms)
        self._learn(but=feed)
        for at, row in enumerate(batch.rows):
            if feed is not None:
                self._advance(feed, min(origin.watermarks[row], held_ms))
            time_ms = self._stream.now_ms
            if time_ms > context.time_ms or (self._is_timed and alarms.next_ms <= time_ms):
                self._catch_up(origin)
            if not self._has_begun:
                self._begin()
            if alarms.may_have_due(origin.times[row]):
                self._fire_key(batch, at)
            place = (origin.feed, positions[row])
            self._index = self._index + 1 if place == self._last else 0
            self._last = place
            if self.failures is None:
                self._process(batch, at)
            else:
                self.failures.attempted(batch, at, self._try, batch, at)
            if self._is_watched:
                self._hand_on(origin)
        context.let_go()
        self._hand_on(origin)

    def _process(self, batch: Batch, at: int) -> None:
        try:
            self._processor.process(self._context.take(batch, at, index=self._index))
        except Exception as error:
            raise batch.failure(self.name, at, error) from error
        except SystemExit as stop:
            raise batch.failure(self.name, at, exit_failure(stop)) from stop

    def _try(self, batch: Batch, at: int) -> None:
        """Process a record so that nothing is left of it if that fails."""
        undo, forwarded = self._undo, self._context.forwarded
        length = len(forwarded.rows)
        if undo is not None:
            undo.begin()
        if self._passing is not None:
            self._passing.begin()
        if self._rows is not None:
            self._rows.begin()
        try:
            self._processor.process(self._context.take(batch, at, index=self._index))
        except BaseException:  # sys.exit, too: nothing may be left of the record
            forwarded.cut(length)
            if undo is not None:
                undo.undo()
            if self._passing is not None:
                self._passing.undo()
            for whole in self._whole:
                whole.look_again()
            if self._rows is not None:
                self._rows.undo()
            raise

    def settle(self, now_ms: int | None) -> bool:
        """All records at hand have been taken: let both clocks take effect.

        Returns whether anything fired.
        """
        if now_ms is None:
            return False
        idle_after_ms = self._node.idle_after_ms
        for feed in self._feeds:
            idle = idle_after_ms is not None and feed.quiet_ms >= idle_after_ms
            if not idle or self._is_news(feed):
                self._advance(feed, self._time_of(feed))
            if idle:
                self._stream.set_idle(feed.source)
        with at_hand(self._rows):
            self._catch_up(None)
            self._fire(self._wall, now_ms, each=False)
        for feed in {self.clock, *self.own_feeds}:
            feed.time_ms = self._context.time_ms
            feed.quiet_ms = min((each.quiet_ms for each in self._feeds), default=0)
            feed.at_end = all(each.at_end for each in self._feeds)
        has_fired, self._has_fired = self._has_fired, False
        return has_fired

    def look(self, now_ms: int) -> None:
        """The time on the wall, from now on."""
        if self._context.wall_ms == UNKNOWN_MS:
            self._wall.alarms.start(now_ms)
        self._context.wall_ms = now_ms

    def close(self) -> None:
        """The task ends.

        Raises:
            ProcessingError: the user's method raised.
        """
        for bound in self._stores.values():
            bound.close()
        self._timers.close()
        self._call("close()", self._processor.close)

    def to_data(self) -> dict[str, object]:
        """What a restart has to know beside the stores."""
        clocks = {name: firings.alarms.to_data() for name, firings in self._firings.items()}
        return {"stream": self._stream.to_data(), "clocks": clocks}

    def load(self, data: Mapping[str, Any]) -> None:
        """Take over what `to_data` gave; the rows are in the stores."""
        self._stream.load(data["stream"])
        self._move(self._stream.now_ms)
        for name, firings in self._firings.items():
            firings.alarms.load(data["clocks"][name])

    def _bound(self, declared: ProcessorStore, store: KeyValueStore) -> BoundStore:
        if declared.backend == "memory" and declared.has_changelog:
            whole = WholeStore(store, declared.store)
            self._whole.append(whole)
            store = whole
        if isinstance(declared, ExpiringProcessorStore):
            return ExpiringBoundStore(declared, store, lambda: self._context.written_ms)
        return BoundStore(declared, store)

    @property
    def _firings(self) -> dict[ClockName, _Firings]:
        return {"event": self._event, "wall": self._wall}

    def _learn(self, *, but: Feed | None = None) -> None:
        """How far the inputs have come by now; of the one in hand each record says it."""
        for feed in self._feeds:
            if feed is not but and self._is_news(feed):
                self._advance(feed, self._time_of(feed))

    def _time_of(self, feed: Feed) -> int:
        return min(feed.time_ms, feed.held_ms(self._node.idle_after_ms))

    def _is_news(self, feed: Feed) -> bool:
        """An idle source that has not moved stays idle."""
        stream, source = self._stream, feed.source
        return not stream.is_idle(source) or feed.time_ms > stream.time_of(source)

    def _advance(self, feed: Feed, time_ms: int) -> None:
        if time_ms > UNKNOWN_MS:
            self._stream.advance(feed.source, time_ms)

    def _begin(self) -> None:
        """With the first record of which the time is known: punctuations count from there."""
        if self._context.time_ms > UNKNOWN_MS:
            self._has_begun = True
            self._event.alarms.start(self._context.time_ms)

    def _catch_up(self, origin: Origin | None) -> None:
        """Stream time has moved: fire what is due, each at its own time."""
        time_ms = self._stream.now_ms
        if self._event.alarms.next_ms <= time_ms:
            if origin is not None:
                self._hand_on(origin)
            self._fire(self._event, time_ms, each=True)
        self._move(time_ms)

    def _move(self, time_ms: int) -> None:
        """It is so late in event time."""
        self._context.time_ms = time_ms
        if time_ms > UNKNOWN_MS:
            for store in self._expiring:
                store.advance(time_ms)

    def _fire(self, firings: _Firings, limit_ms: int, *, each: bool) -> None:
        alarms, context = firings.alarms, self._context
        while alarms.next_ms <= limit_ms and (alarm := alarms.due(limit_ms, each=each)):
            self._has_fired = True
            self._begin_undo()
            if each:
                self._move(max(context.time_ms, alarm.at_ms))
            context.fire(alarm, alarms.feed, row=len(firings.numbers), number=alarms.last)
            firings.numbers.append(alarms.last)
            firings.times.append(context.time_ms)
            self._timers.fire(alarm.at_ms)
            self._call_alarm(alarm)
            if len(firings.numbers) >= FIRINGS_MAX or self._is_watched:
                self._hand_on(firings.origin())
        self._timers.fire(UNKNOWN_MS)
        context.let_go()
        self._hand_on(firings.origin())

    def _fire_key(self, batch: Batch, at: int) -> None:
        """Fire what is due of the key of a record, by the time of the record's source.

        Stream time stays where it is, so what is forwarded is late for no one downstream.
        """
        declared, context, alarms = self._node.timers, self._context, self._event.alarms
        key = None if declared is None else batch.raw_keys(declared.key, self.name)[at]
        limit_ms, time_ms = batch.origin.times[batch.rows[at]], context.time_ms
        while key is not None and (alarm := alarms.due_of(key, limit_ms)):
            self._hand_on(batch.origin)
            self._begin_undo()
            context.time_ms = max(time_ms, alarm.at_ms)
            context.fire(alarm, alarms.feed, row=0, number=alarms.last)
            self._timers.fire(alarm.at_ms)
            self._call_alarm(alarm)
            context.time_ms = time_ms
            self._hand_on(Origin.of_rows(alarms.feed, [alarms.last], [time_ms]))
        self._timers.fire(UNKNOWN_MS)
        context.let_go()

    def _begin_undo(self) -> None:
        for undo in (self._undo, self._passing):
            if undo is not None:
                undo.begin()

    def _call_alarm(self, alarm: Alarm) -> None:
        at = moment(alarm.at_ms)
        if alarm.method:
            method = getattr(self._processor, alarm.method)
            self._call(f"{alarm.method}({at.isoformat()})", lambda: method(at))
            return
        key = self._timers.key_of(alarm)
        try:
            self._processor.on_timer(key, at, alarm.tag)
        except Exception as error:
            call = f"on_timer({key!r}, {at.isoformat()}, {alarm.tag!r})"
            raise self._failure(call, error) from error
        except SystemExit as stop:
            call = f"on_timer({key!r}, {at.isoformat()}, {alarm.tag!r})"
            raise self._failure(call, exit_failure(stop)) from stop

    def _hand_on(self, origin: Origin) -> None:
        self.clock.time_ms = self._context.time_ms
        if self._rows is not None:
            self._rows.hand_on()
        if self._context.forwarded.rows:
            forwarded, self._context.forwarded = self._context.forwarded, Forwarded()
            self.forward(forwarded.batch(origin))

    def _call(self, call: str, method: Callable[[], object]) -> None:
        try:
            method()
        except Exception as error:
            raise self._failure(call, error) from error
        except SystemExit as stop:
            raise self._failure(call, exit_failure(stop)) from stop

    def _failure(self, call: str, error: Exception) -> ProcessingError:
        text = f"{self.name!r} failed in {call}: {type(error).__name__}: {error}"
        return ProcessingError(text, node=self.name)


def _has_policy(node: Process) -> bool:
    return node.on_error is not None and node.on_error.action != "fail"


def _firings(node: Process, store: KeyValueStore, clock: ClockName, partition: int) -> _Firings:
    timers = None
    if node.timers is not None:
        timers = KeyTimers(NamedStore(store, node.timers.store), clock[:1].encode())
    punctuations = [each for each in node.punctuations if each.clock == clock]
    return _Firings(Alarms(Feed((node.feed(clock), partition)), punctuations, timers))
