"""`python -m tests.oracle.connect_rest`: one script of requests to Apache's worker and to ours.

Both run over a broker of ours. Statuses and bodies are compared field by field, without what
belongs to a worker (its address, traces, times) and in any order where Kafka's is that of a hash
map. A difference has one of the `REASONS`, or is printed as unexplained; then the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from conformance.clusters import own_broker
from conformance.kafka import Unavailable
from tests.oracle.connect_rest.answers import Answer, Worker, differences, normal
from tests.oracle.connect_rest.apache_worker import apache_worker
from tests.oracle.connect_rest.java_client import java_client_answers
from tests.oracle.connect_rest.our_worker import our_worker
from tests.oracle.connect_rest.python_client import client_answers
from tests.oracle.connect_rest.requests import STEPS

REASONS = {
    "500": (
        "What is wrong in a request is 400 here, or named in the answer. Kafka Connect answers 500"
        " with the message of an exception of Java."
    ),
    "message": "Settings that are refused: the same status; the messages are ours.",
    "settings": (
        "Settings of ours (`topic`, `discover.every`, `errors.auto.restart`, `flush.*`, dead"
        " letters of sources) are listed as well; a class is a STRING, a SHORT an INT."
    ),
    "plugins": "Transforms, predicates and converters: each lists what it has.",
    "task.class": "Tasks have no class in Java here.",
    "paused": "A connector that is created paused has its tasks here, PAUSED; there it has none.",
    "no task": "A task that does not exist is 404 here; there, 409 while the connector is stopped.",
    "partition": "An offset without a partition is refused here, and passed over there.",
    "level": "The level of the root logger is that of the process.",
}
CLIENTS = {"kafka-connect-py": client_answers, "kafka-connect-client": java_client_answers}
"""Clients of others, each of which takes connectors through their lives."""
BAD = 400
INTERNAL_ERROR = 500
NOT_FOUND = 404
OWN_SETTINGS = re.compile(
    r"^(\.configs)?\.(topic|discover\.every|errors\.auto\.restart|flush\.[a-z.]+"
    r"|errors\.deadletterqueue\.[a-z.]+): only ours has"
)
OWN_TYPES = re.compile(
    r'^(\.configs)?\.((key|value|header)\.converter\.type: "CLASS", ours "STRING"'
    r'|errors\.deadletterqueue\.topic\.replication\.factor\.type: "SHORT", ours "INT")$'
)


def places(theirs: Answer, ours: Answer) -> list[str]:
    """Return where two answers differ, with both values."""
    found = []
    if theirs.status != ours.status:
        found.append(f"status: {theirs.status}, ours {ours.status}")
    # Jersey leaves the type of its own errors out, though they are JSON as all others are.
    if ours.content_type != ("" if ours.body is None else "application/json"):
        found.append(f"content type: ours is {ours.content_type!r}")
    return [*found, *differences(normal(theirs.body), normal(ours.body))]


def judge(theirs: Answer, ours: Answer) -> Iterator[tuple[str, str]]:
    """Yield each difference with the name of its reason; an empty name if it has none."""
    for place in places(theirs, ours):
        yield _reason(theirs, ours, place), place


def _reason(theirs: Answer, ours: Answer, place: str) -> str:
    target = ours.asked.target
    # A validation that is answered names what is wrong in its body.
    is_told = BAD <= ours.status < INTERNAL_ERROR or bool(_errors(ours.body))
    is_bad = theirs.status == ours.status == BAD
    holding = {
        "500": theirs.status >= INTERNAL_ERROR and is_told,
        "message": is_bad and place.startswith(".message") and _is_configuration(target),
        "task.class": ".config.task.class:" in place,
        "paused": target == "/connectors/p/status" and place.startswith(".tasks"),
        "no task": target == "/connectors/n/tasks/0/restart" and ours.status == NOT_FOUND,
        "partition": target == "/connectors/n/offsets" and "`partition`" in str(ours.body),
        "level": target == "/admin/loggers/root" and place.startswith(".level"),
        "plugins": target == "/connector-plugins?connectorsOnly=false",
        "settings": bool(OWN_SETTINGS.match(place) or OWN_TYPES.match(place)),
    }
    return next((reason for reason, holds in holding.items() if holds), "")


def of_clients(url: str) -> list[tuple[str, str, Any]]:
    """Return the answers to the calls of each client: its name, the call, and the answer."""
    return [
        (name, call, answer) for name, answers in CLIENTS.items() for call, answer in answers(url)
    ]


def _reason_of_call(place: str) -> str:
    if ".config.task.class:" in place:
        return "task.class"
    return "settings" if OWN_SETTINGS.match(place) or OWN_TYPES.match(place) else ""


def _errors(body: Any) -> int:
    count: int = body.get("error_count", 0) if isinstance(body, dict) else 0
    return count


def _is_configuration(target: str) -> bool:
    return target == "/connectors" or target.endswith(("/config", "/config/validate"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask both, and print the differences."""
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.connect_rest")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--all", action="store_true", help="print the explained ones as well")
    options = parser.parse_args(arguments)
    with own_broker() as broker:
        try:
            with apache_worker(broker) as url:
                theirs = list(Worker(url).run(STEPS))
                theirs_of_clients = of_clients(url)
        except Unavailable as error:
            print(error)
            return 2
        with our_worker(broker) as url:
            ours = list(Worker(url).run(STEPS))
            ours_of_clients = of_clients(url)
    counts = Counter[str]()
    for one, other in zip(theirs, ours, strict=True):
        counts["requests"] += 1
        found = list(judge(one, other))
        counts["equal"] += not found
        counts.update({reason or "unexplained" for reason, _ in found})
        for reason, place in found:
            if options.all or not reason:
                print(f"{other.asked.method} {other.asked.target} {_text(other.asked.body)}")
                print(f"    {reason or 'unexplained'}: {place}")
    for (client, call, one), (_, _, other) in zip(theirs_of_clients, ours_of_clients, strict=True):
        counts[f"calls of {client}"] += 1
        for place in differences(one, other):
            reason = _reason_of_call(place)
            counts[reason or "unexplained"] += 1
            if options.all or not reason:
                print(f"{client} {call}\n    {reason or 'unexplained'}: {place}")
    for name, count in counts.most_common():
        print(f"{count:5} {name}{f': {REASONS[name]}' if name in REASONS else ''}")
    if options.report is not None:
        options.report.write_text(json.dumps(counts, indent=2))
    return 1 if counts["unexplained"] else 0


def _text(body: Any) -> str:
    return "" if body is None else repr(body)[:100]


if __name__ == "__main__":
    sys.exit(main())
