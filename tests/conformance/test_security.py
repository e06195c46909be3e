"""TLS and SASL with other projects' clients: which connections succeed, and how others fail."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from tests.broker.certificates import certificates
from tests.broker.process import BrokerProcess
from tests.broker.security.test_authentication import token
from tests.conformance.clients import (
    PARTITIONS,
    Access,
    AioKafka,
    Client,
    Confluent,
    KafkaPython,
    Sent,
    Streamlog,
)

PATIENCE_S = 60
PASSWORD = "through the looking-glass"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LIBRARIES = (Confluent, KafkaPython, AioKafka, Streamlog)

one_process = pytest.mark.xdist_group("conformance-security")


def add_user(data: Path, user: str, password: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "streamlog", "users", "add", user, "--log", f"embedded:{data}"],
        input=password + "\n",
        text=True,
        check=True,
        capture_output=True,
    )


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("secured") / "data"
    add_user(data, "alice", PASSWORD)
    protocols = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
    settings = {
        "listeners": ",".join(f"{each}://127.0.0.1:0" for each in protocols),
        "ssl.keystore.location": certificates().broker,
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.unsecured.enable": "true",
    }
    with BrokerProcess(data, settings=settings) as running:
        yield running


def access(protocol: str = "SASL_SSL", mechanism: str = "", password: str = PASSWORD) -> Access:
    authority = certificates().authority if "SSL" in protocol else ""
    if mechanism == "OAUTHBEARER":
        claims = {"sub": "alice", "iat": int(time.time()), "exp": int(time.time()) + 3600}
        return Access(protocol, authority, mechanism, token=token(claims))
    if mechanism:
        return Access(protocol, authority, mechanism, "alice", password)
    return Access(protocol, authority)


def address(secured: BrokerProcess, protocol: str) -> str:
    return f"127.0.0.1:{secured.ports[protocol]}"


def goes_through(client: Client, where: str, topic: str) -> None:
    """Produce with the client, and consume as a group member."""
    records = [
        Sent(number % PARTITIONS, b"k", b"x" * 40_000 + str(number).encode(), 1_000 + number)
        for number in range(40)
    ]
    client.produce(where, topic, "none", records)
    found = client.consume(where, [topic], f"group of {topic}", lambda got: got >= len(records))
    assert sorted(each.value or b"" for each in found[topic]) == sorted(
        each.value or b"" for each in records
    )


@one_process
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_sasl_mechanism_works_over_tls(
    secured: BrokerProcess, library: type[Confluent], mechanism: str
) -> None:
    client = library(access("SASL_SSL", mechanism))
    goes_through(client, address(secured, "SASL_SSL"), f"sasl.{client.name}.{mechanism}")


@one_process
@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("protocol", ["SSL", "SASL_PLAINTEXT"])
def test_each_security_protocol_works(
    secured: BrokerProcess, library: type[Confluent], protocol: str
) -> None:
    mechanism = "SCRAM-SHA-512" if "SASL" in protocol else ""
    client = library(access(protocol, mechanism))
    goes_through(client, address(secured, protocol), f"tls.{client.name}.{protocol}")


class Lines(logging.Handler):
    """Collects the log lines of a library."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def said_by_confluent(given: Access, where: str) -> str:
    logger, lines = logging.getLogger("librdkafka"), Lines()
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    errors: list[KafkaError] = []
    settings = {"bootstrap.servers": where, "error_cb": errors.append, **given.confluent}
    admin = AdminClient(settings, logger=logger)
    until = time.monotonic() + PATIENCE_S
    while not (errors and lines.lines) and time.monotonic() < until:
        admin.poll(0.1)
    logger.removeHandler(lines)
    return "\n".join([*map(str, errors), *lines.lines])


KAFKA_PYTHON = """
import json, logging, sys, kafka
logging.basicConfig(level=logging.WARNING)
try:
    kafka.KafkaConsumer(**json.loads(sys.argv[1]))
except kafka.errors.KafkaError as error:
    print(f"{type(error).__name__}: {error}")
"""


AIOKAFKA = """
import asyncio, json, logging, ssl, sys, aiokafka
logging.basicConfig(level=logging.WARNING)
settings = json.loads(sys.argv[1])
authority = settings.pop("authority")
if authority:
    settings["ssl_context"] = ssl.create_default_context(cafile=authority)

async def main():
    producer = aiokafka.AIOKafkaProducer(**settings)
    try:
        await producer.start()
    except aiokafka.errors.KafkaError as error:
        print(f"{type(error).__name__}: {error}")
    await producer.stop()

asyncio.run(main())
"""


def error_of_process(program: str, settings: dict[str, object]) -> str:
    """Run the program in a separate process: these libraries leave sockets open when they fail."""
    command = [sys.executable, "-c", program, json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def said_by_kafka_python(given: Access, where: str) -> str:
    settings = {"bootstrap_servers": where, "bootstrap_timeout_ms": 10_000, **given.kafka_python}
    return error_of_process(KAFKA_PYTHON, settings)


def said_by_aiokafka(given: Access, where: str) -> str:
    settings = {"bootstrap_servers": where, "authority": given.authority, **given.aiokafka}
    settings.pop("ssl_context", None)
    return error_of_process(AIOKAFKA, settings)


SAID_BY = {
    "confluent": said_by_confluent,
    "kafka-python": said_by_kafka_python,
    "aiokafka": said_by_aiokafka,
}


REFUSED = {
    "confluent": "SASL authentication error: Authentication failed",
    "kafka-python": "SaslAuthenticationFailedError: Authentication failed",
    "aiokafka": "SaslAuthenticationFailed: Authentication failed",
}
CUT_OFF = {
    "confluent": "in state APIVERSION_QUERY",
    "kafka-python": "socket disconnected",
    "aiokafka": "Unable",
}
NO_TLS = {
    "confluent": "in state SSL_HANDSHAKE",
    "kafka-python": "Handshake failed",
    "aiokafka": "Unable connect to",
}
NO_TRUST = {
    "confluent": "certificate verify failed",
    "kafka-python": "CERTIFICATE_VERIFY_FAILED",
    "aiokafka": "CERTIFICATE_VERIFY_FAILED",
}


def logged(secured: BrokerProcess, *lines: str) -> bool:
    """Return whether the broker logs one of these lines in time: the client may be first."""
    until = time.monotonic() + PATIENCE_S
    while not any(line in secured.log_path.read_text() for line in lines):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


@one_process
@pytest.mark.parametrize("library", SAID_BY)
@pytest.mark.parametrize("mechanism", MECHANISMS[:3])
def test_a_wrong_password_is_refused_and_logged(
    secured: BrokerProcess, library: str, mechanism: str
) -> None:
    given = access("SASL_SSL", mechanism, password="down the rabbit hole")
    assert REFUSED[library] in SAID_BY[library](given, address(secured, "SASL_SSL"))
    assert logged(secured, f"{mechanism}: a wrong user or password; the user is 'alice'")
    assert "down the rabbit hole" not in secured.log_path.read_text()
    assert PASSWORD not in secured.log_path.read_text()


@one_process
@pytest.mark.parametrize("library", SAID_BY)
def test_a_plaintext_client_on_a_tls_listener_is_logged(
    secured: BrokerProcess, library: str
) -> None:
    error = SAID_BY[library](access("PLAINTEXT"), address(secured, "SSL"))
    assert CUT_OFF[library] in error
    assert logged(secured, "it does not speak TLS, which listener SSL requires")


@one_process
@pytest.mark.parametrize("library", SAID_BY)
def test_a_tls_client_on_a_plaintext_listener_is_logged(
    secured: BrokerProcess, library: str
) -> None:
    error = SAID_BY[library](access("SSL"), address(secured, "PLAINTEXT"))
    assert NO_TLS[library] in error
    assert logged(secured, "the peer speaks TLS, and this end does not")


@one_process
@pytest.mark.parametrize("library", SAID_BY)
def test_an_untrusted_certificate_authority_is_logged(secured: BrokerProcess, library: str) -> None:
    given = Access("SSL", certificates().stranger_authority)
    assert NO_TRUST[library] in SAID_BY[library](given, address(secured, "SSL"))
    # Not every client gives its reason for closing the connection.
    assert logged(
        secured,
        "it does not trust the authority of the broker's certificate",
        "it closed the connection in the middle; it may reject the broker's certificate",
    )


@one_process
def test_kcat_writes_and_reads_over_sasl_and_tls(secured: BrokerProcess) -> None:
    """The oldest librdkafka on this machine."""
    kcat = shutil.which("kcat")
    if kcat is None:
        pytest.skip("kcat is not installed")
    given = access("SASL_SSL", "SCRAM-SHA-256")
    settings = [f"-X{name}={value}" for name, value in given.confluent.items()]
    command = [kcat, "-b", address(secured, "SASL_SSL"), *settings, "-t", "sasl.kcat"]
    subprocess.run([*command, "-P"], input="one\n", text=True, check=True, timeout=PATIENCE_S)
    read = subprocess.run(
        [*command, "-C", "-e", "-q"], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert read.stdout == "one\n"
