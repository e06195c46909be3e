"""The deterministic event loop and network: asyncio's own streams, partitioned and healed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from simulation.echo import LATENCIES_S, simulate
from simulation.loop import SimulatedLoop, live
from simulation.network import Network
from simulation.process import Machine
from simulation.threads import SimulatedThread

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("seed", range(5))
def test_every_echo_client_finishes(seed: int) -> None:
    life = simulate(seed)
    assert life.violations == ()
    assert life.events > 1000


def test_a_seed_gives_one_life_whatever_the_hash_seed() -> None:
    """In three processes, and twice in this one, equal events happen at equal times."""
    program = "from simulation.echo import simulate; print(simulate(7).trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    traces |= {simulate(7).trace for _ in range(2)}
    assert len(traces) == 1
    assert traces != {simulate(8).trace}


def test_the_systems_random_sources_follow_the_seed() -> None:
    async def drawn(_: SimulatedLoop) -> list[uuid.UUID]:
        return [uuid.uuid4() for _ in range(3)]

    assert live(drawn, 1).result == live(drawn, 1).result != live(drawn, 2).result
    assert uuid.uuid4() != uuid.uuid4()


def test_a_killed_process_runs_no_cleanup() -> None:
    lines: list[str] = []

    async def program() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            lines.append("finally")

    async def kill(loop: SimulatedLoop) -> None:
        machine = Network(loop, latencies_s=LATENCIES_S).machine("m")
        process = machine.start(program())
        await asyncio.sleep(1)
        process.end()
        await asyncio.sleep(20)
        assert lines == []

    assert live(kill, 1).errors == ()


@pytest.mark.parametrize("killed", [True, False])
def test_an_unhandled_error_of_a_killed_process_is_ignored(killed: bool) -> None:
    async def program(loop: SimulatedLoop, answers: list[asyncio.Future[int]]) -> None:
        answers.append(loop.create_future())
        answers[0].set_exception(ValueError("nobody looks at it"))
        await asyncio.sleep(10)

    async def kill(loop: SimulatedLoop) -> None:
        answers: list[asyncio.Future[int]] = []
        machine = Network(loop, latencies_s=LATENCIES_S).machine("m")
        process = machine.start(program(loop, answers))
        await asyncio.sleep(1)
        if killed:
            process.end()
        answers.clear()

    assert len(live(kill, 1).errors) == (0 if killed else 1)


def test_a_paused_process_continues_where_it_stopped() -> None:
    ticks: list[float] = []

    async def tick(loop: SimulatedLoop) -> None:
        for _ in range(5):
            await asyncio.sleep(1)
            ticks.append(loop.time())

    async def pause(loop: SimulatedLoop) -> None:
        process = Network(loop, latencies_s=LATENCIES_S).machine("m").start(tick(loop))
        await asyncio.sleep(1.5)
        process.pause()
        await asyncio.sleep(10)
        process.resume()
        assert process.task is not None
        await process.task

    live(pause, 1)
    assert [int(at) for at in ticks] == [1, 11, 12, 13, 14]


def test_an_unhandled_error_is_reported() -> None:
    async def leave(loop: SimulatedLoop) -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    assert "ZeroDivisionError" in live(leave, 1).errors[0]


def test_a_thread_runs_its_jobs_in_order_and_can_be_waited_for() -> None:
    async def jobs(loop: SimulatedLoop) -> None:
        thread, done = SimulatedThread(loop), list[int]()
        futures = [loop.run_in_executor(thread, done.append, i) for i in range(3)]
        assert done == []
        await asyncio.gather(*futures)
        assert done == [0, 1, 2]
        waited = thread.submit(done.append, 3)
        waited.result()
        thread.submit(done.append, 4)
        thread.shutdown(wait=True)
        assert done == [0, 1, 2, 3, 4]

    live(jobs, 1)


def test_a_reader_that_does_not_read_blocks_the_writer() -> None:
    async def silent(machine: Machine, read: asyncio.Event) -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await read.wait()
            await reader.readexactly(1_000_000)
            writer.close()

        await asyncio.start_server(answer, machine.name, 1)
        await asyncio.Event().wait()

    async def write(drained: list[bool]) -> None:
        _, writer = await asyncio.open_connection("b", 1)
        writer.write(bytes(1_000_000))
        await writer.drain()
        drained.append(True)
        writer.close()
        await writer.wait_closed()

    async def both(loop: SimulatedLoop) -> None:
        network = Network(loop, latencies_s=LATENCIES_S)
        machine, read, drained = network.machine("b"), asyncio.Event(), list[bool]()
        machine.start(silent(machine, read))
        process = network.machine("c").start(write(drained))
        await asyncio.sleep(60)
        assert drained == []
        read.set()
        assert process.task is not None
        await asyncio.wait_for(process.task, 60)
        assert drained == [True]

    assert live(both, 1).errors == ()
