"""Letters: reads dead letters for the pages, and sends chosen ones again.

A shell around `dead_letters`. Rule of the module: a page reads at most `LETTERS_MAX` letters, and
what is sent is exactly what a page has shown, unless a form has changed its value.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from streamlog.client.consumer import Consumer
from streamlog.console.app_pages.letter_pages import (
    LETTERS_MAX,
    TEXT_MAX,
    Letter,
    LetterTopic,
    chosen_of,
    letter_page,
    letters,
)
from streamlog.console.page_changes import Form, Made, PageChange
from streamlog.console.pages.page_layout import View
from streamlog.console.record_filter import FilteredRecord, RecordFilter
from streamlog.console.shown_records import filtered, show
from streamlog.errors import StreamlogError, UnknownTopicOrPartition, UsageError, quantity
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.processing import error_handling
from streamlog.record import TopicPartition
from streamlog.worker.program import Program
from streamlog.worker.topics.dead_letters import (
    DeadLetter,
    Progress,
    check_partitions,
    letter_reader,
    partitioners_of,
    progress,
    read_letters,
    read_unsent,
    replay_group,
    send_chosen,
    unsent,
)

COUNTED_MAX: Final = 100
"""Letters that are counted by reading them; of more, their offsets say about how many there are."""
Offsets: TypeAlias = Mapping[TopicPartition, int]
Span: TypeAlias = tuple[Progress, Offsets]
"""What was sent of a topic, and where it ends."""
NAMED: Final = 5
"""Letters that the audit names; of the others, it has the number."""
_SHORT: Final = {
    "topic": error_handling.TOPIC,
    "node": error_handling.NODE,
    "error": error_handling.EXCEPTION,
    "message": error_handling.MESSAGE,
}
"""Names under which a filter finds the headers of a letter."""


class Letters:
    """The dead letters of one app."""

    def __init__(self, log: Log, program: Program) -> None:
        self._log, self._program = log, program
        self._counted = dict[str, tuple[Span, LetterTopic]]()

    def topics(self) -> list[str]:
        """Return the topics that the app writes dead letters to."""
        program = self._program
        policies = [agent.on_error for agent in program.agents]
        named = [policy.dlq_topic(program.app_id) for policy in policies]
        return sorted({*program.topology.dead_letters, *(each for each in named if each)})

    async def topic_rows(self) -> list[LetterTopic]:
        """Return the topics with the number of their letters."""
        found: list[LetterTopic] = []
        for name in self.topics():
            try:
                async with letter_reader(self._log, name) as consumer:
                    sent = await progress(self._log, consumer, name)
                    begins = await consumer.begin_offsets(sent)
                    ends = await consumer.end_offsets(sent)
            # It is made with the first letter, or was deleted.
            except UnknownTopicOrPartition:
                found.append(LetterTopic(name=name, offsets=None, left=None))
                continue
            found.append(await self._row(name, sent, begins, ends))
        return found

    async def _row(self, name: str, sent: Progress, begins: Offsets, ends: Offsets) -> LetterTopic:
        span = (sent, ends)
        # Counted once, and not at each look of each page: letters are read for it.
        known = self._counted.get(name)
        if known is not None and known[0] == span:
            return known[1]
        held = sum(ends[part] - begins[part] for part in sent)
        left = sum(max(ends[p] - each.until - len(each.ahead), 0) for p, each in sent.items())
        is_exact = left <= COUNTED_MAX
        if left and is_exact:
            # Transactions take offsets as well: of a few, these would be a large part.
            async with letter_reader(self._log, name) as consumer:
                found = await read_unsent(self._log, consumer, sent, COUNTED_MAX)
            left = len(unsent(found, sent))
        row = LetterTopic(name=name, offsets=held, left=left, is_exact=is_exact)
        self._counted[name] = (span, row)
        return row

    async def page(
        self,
        topic: str,
        query: Mapping[str, str],
        token: str | None,
        *,
        error: str = "",
        done: str = "",
    ) -> View:
        """Return the letters of a topic that fit a filter."""
        self._check(topic)
        # A filter that is wrong shows no letters, and its form.
        fit = list[Letter]()
        async with letter_reader(self._log, topic) as consumer:
            sent = await progress(self._log, consumer, topic)
            begins = await consumer.begin_offsets(sent)
            starts = begins if query.get("sent") == "1" else {p: e.until for p, e in sent.items()}
            found = await read_letters(self._log, consumer, starts, LETTERS_MAX + 1)
        try:
            condition = RecordFilter(query.get("q", ""))
            fit = [
                shown_letter(each, sent)
                for each in found[:LETTERS_MAX]
                if (query.get("sent") == "1" or not _is_sent(each, sent))
                and (not condition.text or condition.accepts(_filtered(each)))
            ]
        except UsageError as refused:
            error = str(refused)
        more = len(found) > LETTERS_MAX
        return letters(topic, fit, query, token, more=more, error=error, done=done)

    async def one(
        self, topic: str, partition: str, offset: str, token: str | None, *, error: str = ""
    ) -> View:
        """Return one letter."""
        self._check(topic)
        if not (partition.isdecimal() and offset.isdecimal()) or len(partition + offset) > 25:  # noqa: PLR2004 - digits of two numbers
            return letter_page(topic, None, None, token)
        async with letter_reader(self._log, topic) as consumer:
            sent = await progress(self._log, consumer, topic)
            chosen = [(int(partition), int(offset))]
            found = await read_chosen(self._log, consumer, topic, chosen, sent)
        if not found:
            return letter_page(topic, None, None, token)
        value = found[0].record.value
        return letter_page(
            topic, shown_letter(found[0], sent), _editable(value), token, error=error
        )

    def _check(self, topic: str) -> None:
        # The reader's group would be made for any topic that an address names.
        if topic not in self.topics():
            raise UsageError(f"{topic} is no dead-letter topic of this app")

    # ---- changes ----

    def change_of(self, parts: Sequence[str]) -> PageChange | None:
        """Return the change that a path stands for; None if nothing can be sent there."""
        match parts:
            case ("letters", topic, "send") if topic in self.topics():
                return PageChange(
                    f"send letters of {topic} again",
                    lambda given, token: self._send(topic, given, token),
                )
            case _:
                return None

    async def _send(self, topic: str, given: Form, token: str) -> Made:
        what = f"send letters of {topic} again"
        try:
            chosen = chosen_of(given.get("letters", ""))
            named = ", ".join(f"{part}:{offset}" for part, offset in chosen[:NAMED])
            more = f" and {len(chosen) - NAMED} more" if len(chosen) > NAMED else ""
            what = f"send letters of {topic} again: {named}{more}"
            is_edited = await send_letters(
                self._log, topic, chosen, self._program.topics, given.get("value")
            )
            what += ", with another value" if is_edited else ""
        except StreamlogError as refused:
            error = str(refused)
            return Made(what=what, error=error, view=await self.page(topic, {}, token, error=error))
        done = f"{quantity(len(chosen), 'letter')} sent again."
        return Made(what=what, view=await self.page(topic, {}, token, done=done))


async def send_letters(
    log: Log,
    topic: str,
    chosen: Collection[tuple[int, int]],
    topics: Mapping[str, TopicSpec] | None,
    value: str | None = None,
) -> bool:
    """Send letters again, all or none; returns whether with another value.

    Args:
        log: the log.
        topic: the topic of the letters.
        chosen: the partition and the offset of each letter.
        topics: the topics of the app; without them, each letter needs the partition it came from.
        value: another value for a single letter; None: its own.

    Raises:
        UsageError: one of them was deleted or sent meanwhile, or only the app may write it.
    """
    async with (
        letter_reader(log, topic) as consumer,
        log.producer(transactional_id=replay_group(topic)) as producer,
    ):
        # As in `dlq replay`: an earlier sender is fenced before its progress is read.
        sent = await progress(log, consumer, topic)
        found = await read_chosen(log, consumer, topic, chosen, sent)
        if len(found) != len(chosen):
            raise UsageError("some of these letters were deleted: nothing was sent")
        is_edited = False
        if value is not None and len(found) == 1:
            found, is_edited = _edited(found[0], value)
        if topics is None:
            check_partitions(found)
        else:
            producer.partition_by(partitioners_of(topics))
        await send_chosen(producer, consumer, found, sent)
    return is_edited


async def read_chosen(
    log: Log,
    consumer: Consumer,
    topic: str,
    chosen: Collection[tuple[int, int]],
    sent: Progress,
) -> list[DeadLetter]:
    """Return the letters at these partitions and offsets that the topic still has."""
    # A form may name partitions that the topic never had.
    wanted = {(part, offset) for part, offset in chosen if TopicPartition(topic, part) in sent}
    if not wanted:
        return []
    begins = await consumer.begin_offsets(sent)
    starts = {
        TopicPartition(topic, part): max(
            min(offset for of, offset in wanted if of == part), begins[TopicPartition(topic, part)]
        )
        for part in {part for part, _ in wanted}
    }
    # A page shows neighbours: between the first and the last one are those that did not fit.
    found = await read_letters(log, consumer, starts, LETTERS_MAX * 2)
    return [each for each in found if (each.partition.partition, each.record.offset) in wanted]


def _edited(letter: DeadLetter, text: str) -> tuple[list[DeadLetter], bool]:
    value = text.replace("\r\n", "\n").encode()
    # A browser sends what it was given, also where nothing was typed.
    if value == letter.record.value or letter.record.value is None:
        return [letter], False
    record = letter.record._replace(value=value)
    return [msgspec.structs.replace(letter, record=record)], True


def _editable(value: bytes | None) -> str | None:
    if value is None or len(value) > TEXT_MAX:
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    # A browser would turn other line breaks into its own, and so change what no one has touched.
    return text if "\r" not in text and "\0" not in text else None


def _is_sent(letter: DeadLetter, sent: Progress) -> bool:
    return sent[letter.partition].has(letter.record.offset)


def shown_letter(letter: DeadLetter, sent: Progress) -> Letter:
    """Return a letter as text."""
    text, partition = letter.text, letter.text(error_handling.PARTITION)
    offset = text(error_handling.OFFSET)
    return Letter(
        record=show(letter.partition.partition, letter.record),
        topic=text(error_handling.TOPIC),
        partition=int(partition) if partition.lstrip("-").isdecimal() else -1,
        offset=int(offset) if offset.lstrip("-").isdecimal() else -1,
        node=text(error_handling.NODE),
        exception=text(error_handling.EXCEPTION).removeprefix("builtins."),
        message=text(error_handling.MESSAGE),
        attempts=text(error_handling.ATTEMPT),
        trace=letter.trace,
        is_internal=letter.is_internal,
        is_sent=_is_sent(letter, sent),
    )


def _filtered(letter: DeadLetter) -> FilteredRecord:
    plain = filtered(letter.partition.partition, letter.record)
    # Under short names as well: an operator does not know those of the headers by heart.
    short = {name: letter.text(header) for name, header in _SHORT.items()}
    return msgspec.structs.replace(plain, headers={**plain.headers, **short})
