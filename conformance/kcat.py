"""kcat: a program for shells, built on an old librdkafka (2.0) in Debian.

Each call is a process of its own; only a member of a group stays. A transaction is one process too,
which commits at the end of its input.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from threading import Thread

from conformance.client import (
    HEARTBEAT_MS,
    PATIENCE_S,
    SESSION_MS,
    Client,
    Got,
    Reader,
    Sent,
    Writer,
)

NAMES = ("kcat", "kafkacat")
HOW_TO_INSTALL = "apt-get install kcat"
KEY_ENDS = "|"
POLL_S = 0.1
TIMES = ("-X", f"heartbeat.interval.ms={HEARTBEAT_MS}", "-X", f"session.timeout.ms={SESSION_MS}")
REBALANCED = re.compile(r"rebalanced \(memberid [^)]*\): (assigned|revoked): ?(.*)")
PARTITION = re.compile(r" \[(\d+)\]")
GOES_ON = ("ERROR: Local: Broker transport failure", "Broker: Not coordinator")
"""What it tells of and tries again: a connection that broke, a coordinator that another became."""


def program() -> str | None:
    """Where it is; Debian has had it under two names."""
    return next((found for found in map(shutil.which, NAMES) if found), None)


def _command(*arguments: str) -> list[str]:
    found = program()
    assert found is not None, HOW_TO_INSTALL
    return [found, *arguments]


def _run(*arguments: str, given: str = "") -> str:
    ran = subprocess.run(
        _command(*arguments),
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr.strip()
    assert not any(map(_is_error, ran.stderr.splitlines())), ran.stderr.strip()
    return ran.stdout


def _is_error(line: str) -> bool:
    """One that it does not get over by itself."""
    return "ERROR" in line and not any(each in line for each in GOES_ON)


def _got(line: str) -> Got:
    found = json.loads(line)
    names = found.get("headers") or []
    headers = zip(names[::2], names[1::2], strict=True)
    record = Sent(
        found["partition"],
        None if found["key"] is None else found["key"].encode(),
        None if found["payload"] is None else found["payload"].encode(),
        found["ts"],
        tuple((name, value.encode()) for name, value in headers),
    )
    return Got(found["offset"], record)


def _lines(records: Sequence[Sent]) -> str:
    return "".join(
        f"{(each.key or b'').decode()}{KEY_ENDS}{(each.value or b'').decode()}\n"
        for each in records
    )


class _Writer(Writer):
    """One process for each partition's part of a call."""

    def __init__(self, address: str, options: Sequence[str]) -> None:
        self._address = address
        self._options = ["-P", "-b", address, "-K", KEY_ENDS, *options]

    def write(self, topic: str, records: Sequence[Sent]) -> list[int]:
        for arguments, share in self._shares(topic, records):
            _run(*arguments, given=_lines(share))
        return []  # It does not tell.

    def _shares(
        self, topic: str, records: Sequence[Sent]
    ) -> list[tuple[list[str], Sequence[Sent]]]:
        shares: dict[int, list[Sent]] = {}
        for record in records:
            shares.setdefault(record.partition, []).append(record)
        headers = [f"{name}={(value or b'').decode()}" for name, value in records[0].headers]
        with_headers = [word for header in headers for word in ("-H", header)]
        return [
            ([*self._options, "-t", topic, "-p", str(partition), *with_headers], share)
            for partition, share in shares.items()
        ]


class _TransactionalWriter(_Writer):
    """It has no abort: an interrupted process leaves its transaction open."""

    def start(self) -> None:
        """Each process does it anew."""

    def begin(self) -> None:
        """Likewise."""

    def commit(self) -> None:
        """Each has done so at the end of its input."""


def _offset(address: str, topic: str, partition: int, timestamp_ms: int) -> int:
    asked = f"{topic}:{partition}:{timestamp_ms}"
    options = ("-X", "isolation.level=read_uncommitted")
    return int(_run("-Q", "-b", address, "-t", asked, *options).split()[-1])


class _Reader(Reader):
    def __init__(self, address: str, group: str | None, isolation: str) -> None:
        self._address = address
        self._group = group
        self._options = ["-b", address, "-J", "-X", f"isolation.level={isolation}"]
        self._topic = ""
        self._next: dict[int, int] = {}
        self._member: _Member | None = None

    def assign(self, topic: str, offsets: Mapping[int, int]) -> None:
        self._topic, self._next = topic, dict(offsets)

    def subscribe(self, topic: str) -> None:
        assert self._group is not None
        self._member = _Member(self._group, topic, self._options)

    def poll(self) -> list[Got]:
        if self._member is not None:
            return self._member.poll()
        found: list[Got] = []
        for partition, offset in self._next.items():
            place = ("-t", self._topic, "-p", str(partition), "-o", str(offset))
            lines = _run("-C", "-q", "-e", *place, *self._options).splitlines()
            share = [_got(line) for line in lines]
            found += share
            if share:
                self._next[partition] = share[-1].offset + 1
        return found

    def owns(self) -> set[int]:
        return set() if self._member is None else set(self._member.owned)

    def commit(self) -> None:
        """It commits by itself, when it gives a partition up and when it leaves."""

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        begins = _offset(self._address, topic, partition, -2)
        return begins, _offset(self._address, topic, partition, -1)

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int:
        return _offset(self._address, topic, partition, timestamp_ms)

    def close(self) -> None:
        if self._member is not None:
            self._member.close()


class _Member:
    """A process that stays in a group, and tells of rebalances on its standard error."""

    def __init__(self, group: str, topic: str, options: Sequence[str]) -> None:
        settings = ("-X", "auto.offset.reset=earliest", "-u", *TIMES)
        self.owned: set[int] = set()
        self._found: SimpleQueue[Got] = SimpleQueue()
        self._errors: list[str] = []
        self._process = subprocess.Popen(
            _command("-G", group, *settings, *options, topic),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._threads = [Thread(target=each, daemon=True) for each in (self._read, self._watch)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            self._found.put(_got(line))

    def _watch(self) -> None:
        for line in self._process.stderr or ():
            if _is_error(line):
                self._errors.append(line.strip())
            change = REBALANCED.search(line)
            if change is not None:
                assigned = {int(number) for number in PARTITION.findall(change[2])}
                self.owned = assigned if change[1] == "assigned" else set()

    def poll(self) -> list[Got]:
        assert not self._errors, self._errors
        found: list[Got] = []
        try:
            found.append(self._found.get(timeout=POLL_S))
            while True:
                found.append(self._found.get_nowait())
        except Empty:
            return found

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(PATIENCE_S)
        for thread in self._threads:
            thread.join()


class Kcat(Client):
    """Closed version ranges: what it isn't offered exactly as it expects it does not use."""

    name = "kcat"
    keeps_timestamps = False
    has_lasting_writers = False

    @classmethod
    def version(cls) -> str:
        said = _run("-V")
        found = re.search(r"Version (\S+).*librdkafka (\S+)", said)
        assert found is not None, said
        return f"{found[1]}, librdkafka {found[2]}"

    def writer(
        self,
        *,
        codec: str = "none",
        acks: str = "all",
        idempotent: bool = False,
        transactional_id: str | None = None,
    ) -> Writer:
        options = ["-z", codec, "-X", f"acks={acks}"]
        if transactional_id is not None:
            transactional = [*options, "-X", f"transactional.id={transactional_id}"]
            return _TransactionalWriter(self.address, transactional)
        if idempotent:
            options += ["-X", "enable.idempotence=true"]
        return _Writer(self.address, options)

    def reader(
        self,
        *,
        group: str | None = None,
        committed_only: bool = False,
        coordinator_assigns: bool = False,
    ) -> Reader:
        if coordinator_assigns:
            return super().reader(coordinator_assigns=True)
        isolation = "read_committed" if committed_only else "read_uncommitted"
        return _Reader(self.address, group, isolation)
