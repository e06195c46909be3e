"""Comparisons of data directories: differences below the committed offset are reported."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

import pytest

from chaos.broker import BrokerProcess, build_shim
from chaos.compare import held_against
from chaos.flips import flipped
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.log import Log

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="the shim needs gcc")


@pytest.fixture(scope="module")
def data_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("broker")

    async def main() -> None:
        process = BrokerProcess(directory, build_shim(directory))
        await process.start()
        async with Log.open(f"kafka://{process.address}") as log:
            await log.admin().create_topics([NewTopic("t", 1)])
            async with log.producer() as producer:
                for number in range(50):
                    await producer.send("t", b"%d" % number, partition=0)
        await process.stop()

    asyncio.run(main())
    return directory / "data"


def test_equal_directories_have_no_differences(data_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(data_directory, tmp_path / "2")
    assert held_against({1: data_directory, 2: tmp_path / "2"}) == []


def test_a_recently_replaced_file_is_no_difference(data_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(data_directory, tmp_path / "2")
    (segment,) = (tmp_path / "2").glob("p-*/*.log")
    shutil.copy(segment, f"{segment}.deleted")
    assert held_against({1: data_directory, 2: tmp_path / "2"}) == []


def test_a_missing_record_is_reported(data_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(data_directory, tmp_path / "2")
    (segment,) = (tmp_path / "2").glob("p-*/*.log")
    with segment.open("r+b") as file:
        file.truncate(0)
    assert any(
        "divergence: t-0 ends at" in each
        for each in held_against({1: data_directory, 2: tmp_path / "2"})
    )


def test_a_flipped_bit_is_reported(data_directory: Path, tmp_path: Path) -> None:
    shutil.copytree(data_directory, tmp_path / "2")
    (segment,) = (tmp_path / "2").glob("p-*/*.log")
    (flip,) = flipped(segment.parent, 1, Random(1))
    assert flip.path.suffix in {".log", ".index", ".timeindex"}
    assert held_against({1: data_directory, 2: tmp_path / "2"})
