"""Decoding of damaged inputs: requests as a broker reads them, responses, and record batches.

Each input is a valid one that was damaged. It may be decoded, or refused with one of our errors:
any other outcome, an endless loop or leaked memory is a finding. A batch is normally refused by its
checksum; an attacker would compute a valid one, so batches are read without the check.
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
"""Inputs made from one valid input, which takes longer to generate than to read."""
HANGS_S: Final = 10.0
"""CPU time for all inputs made from one."""
GROWTH_BYTES_MAX: Final = 64 * 1024 * 1024
WARM_SHARE: Final = 0.2
FINDINGS_MAX: Final = 5
Door: TypeAlias = Callable[[bytes], object]


class Hangs(BaseException):
    """Raised when an input is not decoded in time."""


@dataclass
class Outcome:
    """The outcomes of many inputs."""

    counts: Counter[str] = field(default_factory=Counter)
    """By decoder, and whether the input was read or how it was refused."""
    findings: list[str] = field(default_factory=list)
    worst_ms: float = 0.0
    worst_input: str = ""
    grown_bytes: int = 0

    @property
    def inputs(self) -> int:
        """The number of inputs."""
        return self.counts.total()


def fuzz(seed: int, inputs: int) -> Outcome:
    """Try at least this many inputs; a seed determines them."""
    garbage, outcome, warm_bytes = Garbage(seed), Outcome(), 0
    for name, sound, door in _sound(garbage):
        with _time_limit():
            for _ in range(SPOILT_EACH):
                _try(name, door, garbage.spoilt(sound), outcome)
        if not warm_bytes and outcome.inputs >= WARM_SHARE * inputs:
            warm_bytes = resident_bytes()
        if outcome.inputs >= inputs or len(outcome.findings) >= FINDINGS_MAX:
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
def _time_limit() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_S, HANGS_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
