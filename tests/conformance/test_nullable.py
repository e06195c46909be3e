"""Our broker answers each request, with each nullable field null, empty or set."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from conformance.clusters import own_broker
from conformance.nullable import TOPIC, Asked, message, trials
from conformance.sample_requests import Surroundings
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.schema import Struct


def messages_without_an_error(answer: Struct) -> Iterator[str]:
    """Yield the structs with a message but no error code, which Kafka's answers never contain."""
    names = {field.name for field in type(answer).__fields__}
    if {"error_code", "error_message"} <= names:
        code, text = (getattr(answer, name) for name in ("error_code", "error_message"))
        if code == ErrorCode.NONE and text is not None:
            yield f"{type(answer).__name__}: {text!r}"
    for name in names:
        value = getattr(answer, name)
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, Struct):
                yield from messages_without_an_error(each)


async def unanswered(address: str) -> list[str]:
    """Return the requests without an answer, or with a message where there is no error.

    A null that a version can't encode closes the connection.
    """
    broker = Asked(address)
    topic_id = await broker.prepare()
    found = []
    for number, trial in enumerate(trials()):
        request = message(trial, Surroundings(TOPIC, topic_id, number))
        answer = await broker.answer(request, trial.version)
        if isinstance(answer, str):
            found.append(f"{trial}: {answer}")
        else:
            found += (f"{trial}: {each}" for each in messages_without_an_error(answer))
    await broker.close()
    return found


def test_every_request_gets_an_answer_that_its_version_can_encode() -> None:
    with own_broker({"num.partitions": "4"}) as address:
        assert asyncio.run(unanswered(address)) == []
