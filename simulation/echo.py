"""Echo: the simulation's own test: servers and clients made of asyncio's streams, and trouble.

Links are cut one way and healed, servers are killed, started again and paused. Every client comes
to its end, and hears nothing but its own echo.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from simulation.life import Life
from simulation.loop import SimulatedLoop, live
from simulation.network import Network
from simulation.process import Machine

LATENCIES_S = (0.0001, 0.001, 0.05)
SERVERS = ("b0", "b1", "b2")
TROUBLE = ("cut", "heal", "pause", "kill")
CLIENTS = tuple(f"c{i}" for i in range(5))
ECHOES = 100


async def _serve(machine: Machine) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
        except ConnectionError:
            pass
        writer.close()

    server = await asyncio.start_server(answer, machine.name, 9092)
    await asyncio.Event().wait()
    server.close()


async def _ask(loop: SimulatedLoop, name: str, done: list[str]) -> None:
    told = 0
    while told < ECHOES:
        try:
            there = loop.chance.choice(SERVERS)
            async with asyncio.timeout(5):
                reader, writer = await asyncio.open_connection(there, 9092)
            for _ in range(20):
                writer.write(b"hi %d\n" % told)
                async with asyncio.timeout(2):
                    line = await reader.readline()
                if not line.endswith(b"\n"):
                    raise ConnectionError
                if line != b"HI %d\n" % told:
                    loop.errors.append(f"{name} has heard {line!r} for {told}")
                told += 1
            writer.close()
        except (OSError, TimeoutError):
            await asyncio.sleep(1)
    done.append(name)


async def _trouble(network: Network, done: list[str]) -> Counter[str]:
    """Links are cut one way, servers killed and started again, others paused."""
    loop, counts = network.loop, Counter[str]()
    while len(done) < len(CLIENTS):
        await asyncio.sleep(loop.chance.uniform(0.1, 3))
        machine = network.machines[loop.chance.choice(SERVERS)]
        process, kind = machine.process, loop.chance.randrange(4)
        if process is None:
            raise RuntimeError(f"nothing runs on {machine.name}")
        if kind == 0:
            network.block(*((machine.name, client) for client in CLIENTS))
        elif kind == 1:
            network.heal()
        elif kind == 2:
            process.pause()
            await asyncio.sleep(loop.chance.uniform(0.1, 3))
            process.resume()
        else:
            process.end()
            network.process_gone(process, silent=loop.chance.random() < 0.5)
            await asyncio.sleep(loop.chance.uniform(0, 2))
            machine.start(_serve(machine))
        counts[TROUBLE[kind]] += 1
    return counts


async def story(loop: SimulatedLoop) -> Counter[str]:
    """Until every client has heard all it wanted to."""
    network = Network(loop, latencies_s=LATENCIES_S)
    done: list[str] = []
    for name in SERVERS:
        machine = network.machine(name)
        machine.start(_serve(machine))
    for name in CLIENTS:
        network.machine(name).start(_ask(loop, name, done))
    return await _trouble(network, done)


def simulate(seed: int) -> Life:
    """One life."""
    lived = live(story, seed, until_s=10_000)
    return Life(
        seed=seed,
        events=lived.turns,
        counts=lived.result,
        violations=lived.errors,
        trace=lived.trace,
        story=lived.story,
    )
