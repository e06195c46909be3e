"""Asks between workers: the worker with the record answers, and no reply topic is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streamlog.agents.asks import Ask
from streamlog.client.admin import NewTopic
from streamlog.errors import RequestTimedOut
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord
from streamlog.worker import worker_agents as replies_module
from streamlog.worker.worker_agents import RETENTION_MS, Replies
from tests.worker.processes import STREAMLOG, attached, running

DEADLINE_MS = 60_000
APP = """
from collections.abc import AsyncIterator
from streamlog import App, Stream

app = App("oracle", log="embedded:./log", state_dir="./state")
questions = app.topic("questions", key=str, value=int, partitions=2)

@app.agent(questions, concurrency=2)
async def square(stream: Stream[str, int]) -> AsyncIterator[int]:
    async for number in stream:
        yield number * number

asked = 0

@app.timer("100ms", on="every_worker")
async def ask() -> None:
    global asked
    asked += 1
    answer = await square.ask(asked, key=str(asked), timeout="60s")
    print("answer", asked, answer)
"""
WORKER = (*STREAMLOG, "-A", "oracle", "worker")


async def topics(log: Log) -> list[str]:
    return [topic.name for topic in await log.admin().list_topics() if "-replies-" in topic.name]


def test_workers_ask_each_other_and_leave_no_reply_topics(tmp_path: Path) -> None:
    # The second worker leaves while the first still asks it: that ask gets no answer.
    (tmp_path / "oracle.py").write_text(APP)
    with running(*WORKER, cwd=tmp_path) as first:
        first.line("answer 1 1$")
        with running(*WORKER, cwd=tmp_path) as second:
            # Keys lie in both partitions, and each worker has one of them.
            second.line("this worker has 1 partition")
            for count in range(1, 9):
                second.line(rf"answer {count} {count * count}$")
            assert len(attached(f"embedded:{tmp_path / 'log'}", topics)) == 2
            assert second.stop() == 0, second.output
        assert len(attached(f"embedded:{tmp_path / 'log'}", topics)) == 1
        assert first.stop() == 0, first.output


def with_replies(path: Path, story: Callable[[Log, Replies], Awaitable[None]]) -> None:
    async def main() -> None:
        async with (
            Log.open(f"embedded:{path}", listen=False) as log,
            log.producer() as producer,
            asyncio.TaskGroup() as group,
        ):
            await log.admin().create_topics([NewTopic("questions", 1)])
            replies = Replies(
                log, producer, group, app_id="a", process="me", alive=lambda: ["me", "other"]
            )
            await story(log, replies)
            await replies.close()

    asyncio.run(main())


async def first_of(log: Log, topic: str, *, at: int = 0) -> LogRecord:
    topic_partition = TopicPartition(topic, 0)
    async with log.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([topic_partition])
        consumer.seek(topic_partition, at)
        while not (found := (await consumer.poll(timeout_ms=1_000)).get(topic_partition)):
            pass
        return found[0]


async def ask_and_answer(log: Log, replies: Replies) -> tuple[LogRecord, bytes | None]:
    """Ask and answer, and return the asking record and the reply."""
    async with asyncio.TaskGroup() as group:
        request = group.create_task(replies.ask("questions", b"?", key=b"k", timeout_ms=100_000))
        record = await first_of(log, "questions")
        number = dict(record.headers)["streamlog.correlation"] or b""
        replies.answer(Ask("a-replies-me", b"of a life before"), b"no")
        replies.answer(Ask("questions", number), b"no")  # This ask has no topic for replies.
        replies.answer(Ask("a-replies-me", number), b"yes")
        replies.answer(Ask("a-replies-me", number), b"again")
    return record, request.result()


def test_a_reply_reaches_its_ask_and_others_are_dropped(tmp_path: Path) -> None:
    async def story(log: Log, replies: Replies) -> None:
        assert await topics(log) == []
        record, answer = await ask_and_answer(log, replies)
        assert (record.key, record.value, answer) == (b"k", b"?", b"yes")
        assert await topics(log) == ["a-replies-me"]
        configs = await log.admin().describe_configs("a-replies-me")
        assert configs["retention.ms"].value == str(RETENTION_MS)

    with_replies(tmp_path / "log", story)


def test_an_unanswered_ask_times_out_and_names_its_record(tmp_path: Path) -> None:
    async def story(log: Log, replies: Replies) -> None:
        await ask_and_answer(log, replies)
        with pytest.raises(RequestTimedOut, match=r"no answer to questions.* within 2000 ms"):
            await replies.ask("questions", b"?", key=None, timeout_ms=2_000)

    with_replies(tmp_path / "log", story)


def test_an_unanswered_ask_does_not_delay_the_stop_of_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies_module, "LAST_ANSWERS_MS", 20)

    async def story(log: Log, replies: Replies) -> None:
        await ask_and_answer(log, replies)
        pending = asyncio.create_task(
            replies.ask("questions", b"?", key=None, timeout_ms=10 * DEADLINE_MS)
        )
        await first_of(log, "questions", at=1)
        async with asyncio.timeout(DEADLINE_MS / 1000):
            await replies.close()
            with pytest.raises(
                RequestTimedOut, match=r"questions-0 offset 1: this worker is stopping"
            ):
                await pending
            with pytest.raises(RequestTimedOut, match="questions can't be asked"):
                await replies.ask("questions", b"?", key=None, timeout_ms=10 * DEADLINE_MS)

    with_replies(tmp_path / "log", story)


def test_expired_reply_topics_of_lost_processes_are_removed(
    tmp_path: Path,
) -> None:
    async def story(log: Log, replies: Replies) -> None:
        names = [f"a-replies-{name}" for name in ("gone", "gone-and-read", "fresh", "other")]
        await log.admin().create_topics([NewTopic(name, 1) for name in (*names, "b-replies-x")])
        async with log.producer() as producer:
            for name in names:
                if name != "a-replies-fresh":
                    await (await producer.send(name, b"answer"))
        for name in ("a-replies-gone-and-read", "a-replies-other"):
            await log.admin().delete_records({TopicPartition(name, 0): 1})
        await ask_and_answer(log, replies)
        assert sorted(await topics(log)) == [
            "a-replies-fresh",
            "a-replies-gone",
            "a-replies-me",
            "a-replies-other",
            "b-replies-x",
        ]

    with_replies(tmp_path / "log", story)
