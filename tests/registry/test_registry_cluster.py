"""Registries of three brokers: any of them takes writes, the leader of `_schemas` decides."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from streamlog.broker.broker import Broker
from streamlog.registry.registry_service import RegistryService, RestAnswer
from streamlog.registry.rest_requests import parse_request
from streamlog.registry.topic_records import TOPIC
from tests.broker.three_brokers import Cluster, run_cluster, until


class Registries:
    """The registry of each running broker, without HTTP."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.services: dict[int, RegistryService] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self, broker: Broker) -> RegistryService:
        service = RegistryService(broker)
        self.services[broker.directory.node_id] = service
        self._tasks[broker.directory.node_id] = asyncio.ensure_future(service.run())
        return service

    async def stop(self, node_id: int) -> None:
        self.services.pop(node_id)
        task = self._tasks.pop(node_id)
        task.cancel()
        await asyncio.wait([task])

    async def close(self) -> None:
        for node_id in list(self.services):
            await self.stop(node_id)

    def primary(self) -> int | None:
        return next((node for node, each in self.services.items() if each.is_primary), None)


async def ask(service: RegistryService, method: str, path: str, body: object = None) -> RestAnswer:
    content = b"" if body is None else json.dumps(body).encode()
    return await service.answer(parse_request(method, path, content), lambda _: True)


async def register(service: RegistryService, subject: str, name: str) -> int:
    schema = {"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]}
    found = await ask(
        service, "POST", f"/subjects/{subject}/versions", {"schema": json.dumps(schema)}
    )
    assert found.status == 200, found.body
    return int(json.loads(found.body)["id"])


async def get(service: RegistryService, path: str) -> Any:
    found = await ask(service, "GET", path)
    assert found.status == 200, (path, found.body)
    return json.loads(found.body)


@asynccontextmanager
async def started(cluster: Cluster) -> AsyncIterator[Registries]:
    registries = Registries(cluster)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(registries.close)
        await cluster.ready()
        for broker in cluster.brokers:
            registries.start(broker)
        yield registries


def run(story: Callable[[Registries], Awaitable[None]]) -> None:
    async def life(cluster: Cluster) -> None:
        async with started(cluster) as registries:
            await story(registries)

    run_cluster(Cluster, life)


def test_a_write_through_any_broker_is_read_there_at_once_and_by_all() -> None:
    async def story(registries: Registries) -> None:
        services = [registries.services[node] for node in (1, 2, 3)]
        for number, service in enumerate(services):
            schema_id = await register(service, f"s-{number}", f"S{number}")
            assert schema_id == number + 1
            assert f"s-{number}" in await get(service, "/subjects")
            # Elsewhere, a read that misses waits for what is committed.
            for other in services:
                found = await get(other, f"/schemas/ids/{schema_id}")
                assert json.loads(found["schema"])["name"] == f"S{number}"
        assert sum(service.is_primary for service in services) == 1
        topic = registries.cluster.brokers[0]._member.metadata.topic(TOPIC)
        assert topic is not None
        assert len(topic.partitions[0].replicas) == 3
        refused = await ask(services[1], "DELETE", "/subjects/none")
        assert (refused.status, json.loads(refused.body)["error_code"]) == (404, 40401)

    run(story)


@pytest.mark.slow
def test_another_broker_takes_over_from_a_killed_primary() -> None:
    async def story(registries: Registries) -> None:
        services = registries.services
        await register(services[1], "before", "Before")
        primary = registries.primary()
        assert primary is not None
        await registries.stop(primary)
        await registries.cluster.nodes[primary].kill()
        left = list(services.values())
        # While there is no primary, what is registered is answered, and a new schema waits.
        assert await register(left[0], "before", "Before") == 1
        assert await asyncio.gather(
            register(left[0], "after", "After"), register(left[1], "after", "After")
        ) == [2, 2]
        await until(lambda: registries.primary() is not None)
        broker = await registries.cluster.nodes[primary].start()
        returned = registries.start(broker)
        assert await get(returned, "/subjects") == ["after", "before"]

    run(story)


def test_concurrent_registrations_at_all_brokers_get_dense_ids() -> None:
    async def story(registries: Registries) -> None:
        services = list(registries.services.values())
        given = await asyncio.gather(
            *(
                register(services[number % 3], f"s-{number % 10}-{number}", f"S{number // 2}")
                for number in range(60)
            )
        )
        # Two registrations of one schema have one id; thirty schemas have thirty.
        assert sorted(set(given)) == [*range(1, 31)]
        assert all(given[2 * each] == given[2 * each + 1] for each in range(30))

    run(story)
