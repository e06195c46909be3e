"""The number of workers for `-w`, and their web addresses."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog import App
from streamlog.cli.worker_command import (
    available_cores,
    prepare_topics,
    processes_of,
    quota,
    slot_address,
)
from streamlog.errors import UsageError
from streamlog.log import Log
from streamlog.worker.process.slots import Slot


@pytest.mark.parametrize("given", ["0", "-1", "many", "1.5", "100000", ""])
def test_an_invalid_number_of_workers_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="-w takes a number from 1 to 256, or auto"):
        processes_of(given)


def test_auto_means_the_available_cores() -> None:
    assert processes_of("3") == 3
    assert processes_of("auto") == available_cores() >= 1


def test_each_worker_has_its_own_web_port() -> None:
    slot = Slot(number=3, of=3, supervisor="s", is_first=True, alive_fd=0)
    assert slot_address("127.0.0.1:8080", slot) == "127.0.0.1:8082"
    assert slot_address("[::1]:8080", slot) == "[::1]:8082"
    assert slot_address(":0", slot) == ":0"
    # The error is reported when the address is opened.
    assert slot_address("nonsense", slot) == "nonsense"


def test_the_supervisor_leaves_topics_that_follow_from_a_pattern_to_its_workers(
    tmp_path: Path,
) -> None:
    app = App("patterns", log=f"embedded:{tmp_path}")
    orders = app.topic_pattern("orders", r"orders-[a-z]+", key=str, value=int)
    counts = app.topic("counts", key=str, value=int, partitions=2)
    app.stream(orders).group_by_key().count(name="n").changes().to(counts)

    async def made() -> list[str]:
        async with Log.open(app.log) as log:
            await prepare_topics(app.program(), log, is_embedded=True)
            return [each.name for each in await log.admin().list_topics()]

    assert asyncio.run(made()) == ["counts"]


def group(root: Path, path: str, **files: str) -> None:
    (root / path).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / path / name.replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")).write_text(text)


def test_the_smallest_cpu_quota_of_all_cgroup_levels_counts(tmp_path: Path) -> None:
    group(tmp_path, "pod", cpu_max="150000 100000\n")
    group(tmp_path, "pod/app", cpu_max="max 100000\n")
    assert quota("0::/pod/app\n", tmp_path) == 1.5
    assert quota("0::/\n", tmp_path) == float("inf")
    assert quota("0::/elsewhere\n", tmp_path) == float("inf")


def test_cpu_quotas_of_cgroups_v1_are_read(tmp_path: Path) -> None:
    group(tmp_path, "cpu/pod", cpu_cfs_quota_us="300000\n", cpu_cfs_period_us="100000\n")
    group(tmp_path, "cpu", cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    memory = "4:memory:/pod\n"
    assert quota(memory + "1:cpu,cpuacct:/pod\n", tmp_path) == 3
    assert quota(memory + "1:cpu:/\n", tmp_path) == float("inf")
