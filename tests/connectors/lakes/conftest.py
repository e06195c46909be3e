from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from tests.connectors.lakes.lakes import KINDS, Tables, local_tables


@pytest.fixture(params=KINDS)
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    """Return empty tables of each format on disk."""
    return local_tables(request.param, tmp_path)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """Return the address of moto's server, a double of S3, with a bucket."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    httpx.put(f"{address}/lake", headers={"Host": f"{host}:{port}"}).raise_for_status()
    yield address
    server.stop()
