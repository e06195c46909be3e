"""All questions about the flights, answered by streams and compared with data frames."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from examples.flights.questions import app as questions
from examples.flights.questions.answers import TOPICS, Answers
from examples.flights.questions.feed import events
from examples.flights.questions.frames import Expected

ROOT = Path(__file__).parent.parent.parent
FLIGHTS = 1_000
PARTITIONS = 2


def test_streams_give_the_answers_of_the_data_frames() -> None:
    answers = Answers()
    with questions.app.test(partitions=PARTITIONS) as t:
        for number, event in enumerate(events(FLIGHTS)):
            if event.partition is None or event.partition < PARTITIONS:
                till = t.input(event.topic)
                till.send(event.value, key=event.key, at=event.at, partition=event.partition)
            if number == FLIGHTS:
                t.restart()
        for topic in TOPICS:
            for record in t.output(topic).records:
                answers.add(topic.name, record)
    assert answers.differences(Expected.of(FLIGHTS)) == []
    assert all(vars(answers).values())


def test_a_worker_gives_the_answers_of_the_data_frames(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "examples.flights.questions", "--limit", str(FLIGHTS)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "all answers equal the data frames'" in result.stdout
