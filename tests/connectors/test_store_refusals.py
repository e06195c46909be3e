"""What a store says that will not pass fails a task in one line; what may pass is tried again.

Each connector asks by its own library: obstore, deltalake, pyiceberg. The store is moto's S3, or a
server that answers each request with one status, since moto lets everybody in.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from streamlog.connect import Retriable, Secret, Sink, TopicPartition
from streamlog.connectors.lakes.delta import Delta
from streamlog.connectors.lakes.iceberg import Iceberg
from streamlog.connectors.objects import Objects
from streamlog.connectors.store_refusals import refusal
from streamlog.errors import ConfigError
from tests.connectors.lakes.lakes import batch_of
from tests.connectors.runs import writing
from tests.worker.commit_steps import IS_THOROUGH

SLOW = pytest.mark.skipif(not IS_THOROUGH, reason="some seconds of waits in the libraries")
PLACE = TopicPartition("shop.orders-1", 0)
Made = Callable[[str, Path], Sink[Any, Any]]


def objects(address: str, path: Path, secret: str | None = "s", bucket: str = "b") -> Objects:
    del path
    options = {"endpoint": address, "region": "us-east-1", "access_key_id": "a"}
    return Objects(
        url=f"s3://{bucket}/t", options=options, secret=None if secret is None else Secret(secret)
    )


def delta(address: str, path: Path, secret: str | None = "s", bucket: str = "b") -> Delta:
    del path
    options = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "a",
        "max_retries": "0",
    }
    secrets = None if secret is None else Secret(json.dumps({"AWS_SECRET_ACCESS_KEY": secret}))
    return Delta(url=f"s3://{bucket}/t", options=options, secrets=secrets)


def iceberg(address: str, path: Path, secret: str | None = "s", bucket: str = "b") -> Iceberg:
    properties = {
        "type": "sql",
        "uri": f"sqlite:///{path / 'catalog.db'}",
        "warehouse": f"s3://{bucket}/w",
        "s3.endpoint": address,
        "s3.region": "us-east-1",
        "s3.access-key-id": "a",
        "s3.connect-timeout": "2",
        "s3.request-timeout": "2",
    }
    secrets = None if secret is None else Secret(json.dumps({"s3.secret-access-key": secret}))
    return Iceberg(table="main.orders", properties=properties, secrets=secrets)


SINKS = {"Objects": objects, "Delta": delta, "Iceberg": iceberg}


@contextmanager
def answering(status: int, code: str) -> Iterator[str]:
    """A store that answers every request alike; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            body = f"<Error><Code>{code}</Code><Message>as told</Message></Error>".encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def first_flush(sink: Sink[Any, Any]) -> None:
    """Do what the runtime does until the first flush is committed."""
    async with writing(sink) as task:
        await task.recover([PLACE])
        await task.begin()
        await task.write(batch_of([{"a": 1}]))
        await task.commit({PLACE: 1})


def failure_of(sink: Sink[Any, Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as caught:
        asyncio.run(first_flush(sink))
    text = str(caught.value)
    assert text.isprintable(), "one line, without colours"
    return text


@pytest.mark.parametrize("name", SINKS)
@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "InvalidAccessKeyId"),
        (400, "AuthorizationHeaderMalformed"),
        (301, "PermanentRedirect"),
    ],
)
def test_a_store_that_refuses_fails_the_task(
    tmp_path: Path, name: str, status: int, code: str
) -> None:
    with answering(status, code) as address:
        text = failure_of(SINKS[name](address, tmp_path), ConfigError)
    assert "look at the bucket, region, endpoint and credentials" in text


MAY_PASS = [
    pytest.param(objects, marks=SLOW),
    delta,
    pytest.param(iceberg, marks=SLOW),
]


@pytest.mark.parametrize("made", MAY_PASS)
@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_store_that_is_in_trouble_is_asked_again(tmp_path: Path, made: Made, status: int) -> None:
    with answering(status, "SlowDown") as address:
        failure_of(made(address, tmp_path), Retriable)


@pytest.mark.parametrize("made", MAY_PASS)
def test_a_store_that_is_away_is_asked_again(tmp_path: Path, made: Made) -> None:
    with answering(500, "") as address:
        pass  # Nobody listens there any more.
    failure_of(made(address, tmp_path), Retriable)


@pytest.fixture(scope="module")
def moto() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.mark.parametrize("name", SINKS)
def test_a_bucket_that_does_not_exist_fails_the_task(moto: str, tmp_path: Path, name: str) -> None:
    text = failure_of(SINKS[name](moto, tmp_path, bucket="nowhere"), ConfigError)
    assert "the bucket does not exist" in text


@pytest.mark.parametrize("name", ["Objects", "Delta"])
def test_half_of_a_login_fails_the_task(moto: str, tmp_path: Path, name: str) -> None:
    assert "Missing SecretAccessKey" in failure_of(SINKS[name](moto, tmp_path, None), ConfigError)


def test_objects_ask_the_store_before_a_file_is_written(moto: str, tmp_path: Path) -> None:
    async def start(sink: Sink[Any, Any]) -> None:
        async with writing(sink):
            raise AssertionError("the store was not asked")

    with pytest.raises(ConfigError, match="the bucket does not exist"):
        asyncio.run(start(objects(moto, tmp_path, bucket="nowhere")))
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="is a file, and no directory"):
        asyncio.run(start(Objects(url=str(tmp_path / "file" / "lake"))))


def test_a_role_that_may_write_and_not_read_is_let_through(tmp_path: Path) -> None:
    async def start(sink: Sink[Any, Any]) -> None:
        async with writing(sink):
            pass

    with answering(403, "AccessDenied") as address:
        asyncio.run(start(objects(address, tmp_path)))


ASKED = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1.3ms - "


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        ("HTTP error: error sending request", True),
        ("Server returned non-2xx status code: 403 Forbidden", True),
        ("Server returned non-2xx status code: 404 Not Found", True),
        ("Server returned non-2xx status code: 429 Too Many Requests", False),
        ("Server returned non-2xx status code: 503 Service Unavailable", False),
    ],
)
def test_a_machine_without_credentials_is_no_store_that_is_away(
    said: str, is_refused: bool
) -> None:
    """Recorded of object_store on this machine, whose network refuses the service."""
    assert ("no credentials" in (refusal(ASKED + said) or "")) is is_refused
