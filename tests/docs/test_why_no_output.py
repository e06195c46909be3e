"""docs/why-no-output.md: each cause is provoked, and each command shows what the page says."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from streamlog.cli.root import cli
from streamlog.cli.session import Session
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.serdes import serde_for
from tests.docs.transcripts import agree, steps
from tests.worker.processes import DEADLINE_S, STREAMLOG, Process, running
from tests.worker.web.requests import get
from tools.figures.decision_trees import trees

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/why-no-output.md").read_text()
SHOP = """
import asyncio

from streamlog import App, Emit, Windowed, on_error, tumbling

app = App("shop", log="embedded:./log", state_dir="./state", commit_interval="50ms", watchdog="1s")


def topic(name, partitions=1, **settings):
    return app.topic(name, key=str, value=int, partitions=partitions, **settings)


def count(grouped, name):
    rows = app.topic(f"{name}-rows", key=Windowed[str], value=int, partitions=1)
    windowed = grouped.windowed(tumbling("1m")).emit(Emit.CLOSE)
    windowed.count(name=name).changes().to(rows)


def checked(cents):
    if cents < 0:
        raise ValueError("negative")
    return cents


count(app.stream(topic("orders")).group_by_key(), "open")
count(app.stream(topic("returns")).group_by_key(), "late")
count(app.stream(topic("clicks", timestamp=lambda at_ms: at_ms)).group_by_key(), "ahead")
visits = topic("visits", 2)
count(app.stream(visits).group_by(lambda key, _: "page", name="by-page"), "per-page")
count(app.stream(topic("refunds")).group_by_key(), "unreached")
valid = app.stream(topic("payments")).map_values(checked, name="checked", on_error=on_error.dlq())
valid.filter(lambda _, cents: cents > 0, name="not-free").to(topic("paid"))
products = app.table(topic("products", 2), name="product-list")
purchases = app.stream(topic("purchases", 2))
purchases.join(products, lambda n, price: n * price, name="with-price").to(topic("priced", 2))
mails = topic("mails")


@app.agent(mails)
async def send(stream):
    async for _ in stream:
        await asyncio.Event().wait()
"""
STILL = {"mark.quiet.ms": "-1"}
NINE_MS = 1_767_603_600_000
"""Nine o'clock on 5 January 2026."""
YEAR_2029_MS = 1_861_920_000_000
COMMANDS = [step for step in steps(PAGE) if step.shown]
WITHOUT_WORKER = [step for step in COMMANDS if "Empty" in step.shown[0]]
WITH_TRANSACTION = [step for step in COMMANDS if "transactions" in step.text]
WITH_WORKER = [s for s in COMMANDS if s not in WITHOUT_WORKER + WITH_TRANSACTION]
NUMBERS = serde_for(int)
Sent = tuple[str, int, int, bytes | None, int]
RECORDS: list[Sent] = [
    ("orders", 0, NINE_MS, b"k", 1),
    ("orders", 0, NINE_MS + 1_000, b"k", 1),
    ("returns", 0, NINE_MS, b"k", 1),
    ("returns", 0, NINE_MS + 3_600_000, b"k", 1),
    ("returns", 0, NINE_MS + 1_000, b"k", 1),
    ("clicks", 0, NINE_MS, b"k", YEAR_2029_MS),
    ("clicks", 0, NINE_MS, b"k", NINE_MS),
    ("clicks", 0, NINE_MS, b"k", NINE_MS + 120_000),
    ("visits", 0, NINE_MS + 3_600_000, b"k", 1),
    ("visits", 1, NINE_MS, b"k", 1),
    ("refunds", 0, NINE_MS, None, 1),
    ("payments", 0, NINE_MS, b"k", -5),
    ("payments", 0, NINE_MS, b"k", 0),
    ("payments", 0, NINE_MS, b"k", 7),
    ("products", 1, NINE_MS, b"pretzel", 90),
    ("purchases", 0, NINE_MS + 1, b"pretzel", 2),
    ("mails", 0, NINE_MS, b"k", 1),
    ("archive", 0, NINE_MS, b"k", 1),
    ("archive", 0, NINE_MS, b"k", 1),
    ("archive", 0, NINE_MS, b"k", 1),
]
"""Records by topic, partition, time, key, and value, in the order in which they are sent."""


def test_each_cause_has_a_question_and_each_question_a_cause() -> None:
    (*_, causes) = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    asked = {q.answer for _, questions in trees(PAGE) for q in questions}
    titles = {*re.findall(r"^##+ (.*)$", PAGE, re.MULTILINE)}
    explained = {*re.findall(r"^### (.*)$", causes, re.MULTILINE)}
    assert explained <= asked <= titles
    for text in causes.split("\n### ")[1:]:
        assert [step for step in steps(text) if step.shown], text.partition("\n")[0]


async def provoke(url: str) -> None:
    async with Log.open(url, create=True, listen=False) as log:
        await fill(log)


async def fill(log: Log) -> None:
    admin = log.admin()
    counts = {"gifts": 0} | {name: 0 for name, *_ in RECORDS}
    counts |= dict.fromkeys(("visits", "products", "purchases"), 1)
    await admin.create_topics(
        [NewTopic(name, partitions=last + 1, configs=STILL) for name, last in counts.items()]
    )
    async with log.producer() as producer:
        for topic, partition, at_ms, key, value in RECORDS:
            record = (at_ms, key, NUMBERS.dumps(value), ())
            await (await producer.send_batch(topic, partition, [record], atomic=True))
    await admin.delete_records({TopicPartition("archive", 0): 2})
    await admin.alter_group_offsets("shop", {TopicPartition("mails", 0): 0})


def run(command: str, *options: str) -> list[str]:
    """Run a command of streamlog in this process."""
    words = [*shlex.split(command)[1:], *(options or ("--log", "embedded:./log"))]
    result = CliRunner().invoke(cli, words, obj=Session(), env={"COLUMNS": "200"})
    return [line.rstrip() for line in result.output.splitlines()]


class Prompt:
    """Runs the commands of the page in this process, beside a worker in another one."""

    def __init__(self, worker: Process) -> None:
        self.log = worker.line(r"on (127\.0\.0\.1:\d+)")[1]
        self._web = worker.line(r"web +(http\S+)")[1]

    def run(self, command: str) -> list[str]:
        if command.startswith("curl"):
            _, _, url, *filtered = shlex.split(command)
            lines = get(self._web + url.removeprefix("localhost:8080")).body.decode().splitlines()
            return sorted(line for line in lines if re.search(_pattern(filtered), line))
        return run(command, "--log", f"kafka://{self.log}")

    def until(self, *names: str) -> None:
        """Wait until the worker shows these metrics."""
        deadline = monotonic() + DEADLINE_S
        while missing := [n for n in names if not self.run(f"curl -s /metrics | grep {n}")]:
            assert monotonic() < deadline, missing
            sleep(0.05)


def _pattern(filtered: list[str]) -> str:
    """Return the pattern of a `| grep`, which reads `(` and `{` of a basic one as they stand."""
    if not filtered:
        return ""
    return filtered[-1] if "-E" in filtered else re.sub(r"([(){}|])", r"\\\1", filtered[-1])


@contextmanager
def open_transaction(prompt: Prompt) -> Iterator[None]:
    producer = Producer({"bootstrap.servers": prompt.log, "transactional.id": "importer"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("gifts", b"v", partition=0)
    producer.flush()
    yield
    producer.abort_transaction()


def test_each_command_shows_its_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one test, as one worker is enough for it."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    asyncio.run(provoke(f"embedded:{tmp_path}/log"))
    command = (*STREAMLOG, "-A", "shop", "worker", "--web", "127.0.0.1:0")
    found = {step.text: agree(step, run(step.text)) for step in WITHOUT_WORKER}
    with running(*command, cwd=tmp_path) as worker:
        prompt = Prompt(worker)
        prompt.until("^streamlog_held_back_seconds{", "^streamlog_stalled_seconds{")
        for step in WITH_WORKER:
            found[step.text] = agree(step, prompt.run(step.text))
        with open_transaction(prompt):
            for step in WITH_TRANSACTION:
                found[step.text] = agree(step, prompt.run(step.text))
    assert {text for text, agrees in found.items() if not agrees} == set()
