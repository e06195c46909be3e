"""One client through its features: a line of JSON for each, on standard output.

`python -m conformance.program CLIENT ADDRESS CLUSTER FEATURE...` is a process of its own, so that a
library that hangs takes nobody along. It says what it begins with, so that whoever waits knows what
it hangs in.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
import warnings
from dataclasses import asdict, dataclass

from conformance.aio_kafka import AioKafka
from conformance.client import Client, NotOffered
from conformance.confluent import Confluent
from conformance.features import FEATURES, Trial
from conformance.kafka_python import KafkaPython
from conformance.kcat import Kcat
from conformance.own import Own

MOCK, THREE = "mock", "three"
CLIENTS: tuple[type[Client], ...] = (Confluent, AioKafka, KafkaPython, Kcat, Own)

PASS = "pass"  # noqa: S105 - no secret
FAIL = "fail"
NOT_OFFERED = "not offered"
NOT_SERVED = "not served"

DETAIL_CHARS = 300


@dataclass(frozen=True, slots=True)
class Outcome:
    """A cell of the table."""

    feature: str
    result: str
    detail: str = ""


def outcome(client: Client, name: str, *, is_steady: bool = True) -> Outcome:
    """Try it."""
    feature = next(each for each in FEATURES if each.name == name)
    topic = f"{client.name}.{re.sub('[^a-zA-Z0-9]+', '.', name)}.{secrets.token_hex(3)}"
    trial = Trial(client, topic, is_steady=is_steady)
    try:
        feature.program(trial)
    except NotOffered as missing:
        return Outcome(name, NOT_OFFERED, str(missing))
    except Exception as error:  # noqa: BLE001 - every library has its own errors: they are the cell
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return Outcome(name, FAIL, text[:DETAIL_CHARS])
    return Outcome(name, PASS)


def main() -> None:
    """Command line."""
    name, address, cluster, *wanted = sys.argv[1:]
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    client = next(each for each in CLIENTS if each.name == name)(address, is_mock=cluster == MOCK)
    for feature in wanted:
        print(json.dumps({"begins": feature}), flush=True)
        found = outcome(client, feature, is_steady=cluster != THREE)
        print(json.dumps(asdict(found)), flush=True)
    # A library's threads may not end by themselves after a failure, and nobody waits for them.
    os._exit(0)


if __name__ == "__main__":
    main()
