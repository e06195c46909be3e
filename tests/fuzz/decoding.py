"""Decoding what nobody would send: requests as a broker reads them, responses, and record batches.

Each input is a sound one that was spoilt. It may be read, or refused with an error of ours: what
else comes of it, and what has no end or keeps memory, is a finding. A batch is refused by its
checksum first; whoever means harm computes that, so it is read without.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

from streamlog.errors import StreamlogError
from streamlog.protocol.frame import decode_request, decode_response
from streamlog.records.batch import split_batches
from tests.broker.garbage import Garbage
from tests.broker.memory import resident_bytes

SPOILT_EACH: Final = 25
"""Inputs that are made of one sound one: to make that takes longer than to read it."""
HANGS_S: Final = 10.0
"""Of CPU time, for all that are made of one."""
GROWTH_BYTES_MAX: Final = 64 * 1024 * 1024
WARM_SHARE: Final = 0.2
TOLD_MAX: Final = 5
Door: TypeAlias = Callable[[bytes], object]


class Hangs(BaseException):
    """One of the inputs is not read to its end."""


@dataclass
class Outcome:
    """What many inputs have come to."""

    counts: Counter[str] = field(default_factory=Counter)
    """By door, and whether it was read or how it was refused."""
    findings: list[str] = field(default_factory=list)
    worst_ms: float = 0.0
    worst_input: str = ""
    grown_bytes: int = 0

    @property
    def inputs(self) -> int:
        """How many there were."""
        return self.counts.total()


def fuzz(seed: int, inputs: int) -> Outcome:
    """Try so many inputs at least, the same ones for the same seed."""
    garbage, outcome, warm_bytes = Garbage(seed), Outcome(), 0
    for name, sound, door in _sound(garbage):
        with _not_for_ever():
            for _ in range(SPOILT_EACH):
                _try(name, door, garbage.spoilt(sound), outcome)
        if not warm_bytes and outcome.inputs >= WARM_SHARE * inputs:
            warm_bytes = resident_bytes()
        if outcome.inputs >= inputs or len(outcome.findings) >= TOLD_MAX:
            break
    outcome.grown_bytes = resident_bytes() - warm_bytes if warm_bytes else 0
    if outcome.grown_bytes > GROWTH_BYTES_MAX:
        outcome.findings.append(f"{outcome.grown_bytes} bytes more than when it was warm")
    return outcome


def _sound(garbage: Garbage) -> Iterator[tuple[str, bytes, Door]]:
    while True:
        for api, version in garbage.corpus:
            yield "request", garbage.request(api, version), decode_request
            response = partial(decode_response, api, version)
            yield "response", garbage.response(api, version), response
            yield "batch", garbage.records(), _read_batches


def _read_batches(data: bytes) -> None:
    for batch in split_batches(data):
        batch.columns()


def _try(name: str, door: Door, given: bytes, outcome: Outcome) -> None:
    began_ns = time.thread_time_ns()
    try:
        door(given)
        what = "read"
    except StreamlogError as error:
        what = type(error).__name__
    except Hangs:
        outcome.findings.append(f"{name}, hangs: {given.hex()}")
        what = "hangs"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        outcome.findings.append(f"{name}, {error!r}: {given.hex()}")
        what = "crashed"
    took_ms = (time.thread_time_ns() - began_ns) / 1e6
    outcome.counts[f"{name}: {what}"] += 1
    if took_ms > outcome.worst_ms:
        outcome.worst_ms, outcome.worst_input = took_ms, f"{name}: {given.hex()}"


@contextmanager
def _not_for_ever() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
