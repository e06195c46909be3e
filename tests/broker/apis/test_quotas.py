"""Client quotas: altered, described and kept; the most specific one applies."""

from __future__ import annotations

import asyncio
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.apis.quotas import ANY, DEFAULT, EXACT
from streamlog.broker.broker import Broker
from streamlog.broker.config.resources import (
    CLIENT_ID,
    FETCH_RATE,
    PRODUCE_RATE,
    USER,
    Entity,
    QuotaTable,
    entity_of,
)
from streamlog.broker.server import connections as sweeping
from streamlog.broker.server.socket_server import Acceptor
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import ClientQuota
from streamlog.errors import LogError
from streamlog.log import Log
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import ProduceRequest, ProduceResponse
from streamlog.protocol.messages.sasl_acls_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    QuotaOperation,
)
from tests.broker.node import Node, ask, batch, create, produce_request
from tests.broker.server.test_socket_server import peer

Names = dict[str, str | None]


def change(entity: Names, **rates: float | None) -> QuotaAlteration:
    return QuotaAlteration(
        entity=[QuotaEntity(entity_type=kind, entity_name=name) for kind, name in entity.items()],
        ops=[
            QuotaOperation(key=key, value=rate or 0, remove=rate is None)
            for key, rate in rates.items()
        ],
    )


async def alter(broker: Broker, *changes: QuotaAlteration, dry: bool = False) -> list[AlteredQuota]:
    request = AlterClientQuotasRequest(entries=[*changes], validate_only=dry)
    return (await ask(broker, request, AlterClientQuotasResponse)).entries


async def describe(
    broker: Broker, *filters: QuotaFilter, strict: bool = False
) -> list[tuple[Names, dict[str, float]]]:
    request = DescribeClientQuotasRequest(components=[*filters], strict=strict)
    response = await ask(broker, request, DescribeClientQuotasResponse)
    assert response.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in response.entries or []
    ]


def test_the_most_specific_quota_applies() -> None:
    levels: list[tuple[Entity, tuple[str | None, str | None]]] = [
        (((CLIENT_ID, None),), (None, "c")),
        (((CLIENT_ID, "c"),), (None, "c")),
        (((USER, None),), ("u", None)),
        (((CLIENT_ID, None), (USER, None)), ("u", "c")),
        (((CLIENT_ID, "c"), (USER, None)), ("u", "c")),
        (((USER, "u"),), ("u", None)),
        (((CLIENT_ID, None), (USER, "u")), ("u", "c")),
        (((CLIENT_ID, "c"), (USER, "u")), ("u", "c")),
    ]
    table = QuotaTable()
    assert table.bound(PRODUCE_RATE, "u", "c") is None
    for rate, (entity, account) in enumerate(levels, 1):
        table = table.alter(entity, {PRODUCE_RATE: rate})
        assert table.bound(PRODUCE_RATE, "u", "c") == (rate, account)
        assert table.bound(FETCH_RATE, "u", "c") is None, "each rate is separate"
    other = table.bound(PRODUCE_RATE, "v", "d")
    assert other == (4, ("v", "d"))
    for rate, (entity, _) in reversed([*enumerate(levels, 1)]):
        assert table.bound(PRODUCE_RATE, "u", "c") == (rate, levels[rate - 1][1])
        table = table.alter(entity, {PRODUCE_RATE: None})
    assert len(table) == 0


def test_quotas_are_altered_described_kept_and_removed(node: Node) -> None:
    async def story(broker: Broker) -> None:
        answers = await alter(
            broker,
            change({"client-id": "a"}, producer_byte_rate=1000, consumer_byte_rate=2000),
            change({"client-id": None}, producer_byte_rate=5),
            change({"user": "u", "client-id": "a"}, consumer_byte_rate=7),
        )
        assert [each.error_code for each in answers] == [0, 0, 0]
        assert (await alter(broker, change({"user": "u"}, producer_byte_rate=1), dry=True))[
            0
        ].error_code == 0

    async def again(broker: Broker) -> None:
        every = await describe(broker)
        assert every == [
            ({"client-id": "a"}, {"producer_byte_rate": 1000, "consumer_byte_rate": 2000}),
            ({"client-id": None}, {"producer_byte_rate": 5}),
            ({"client-id": "a", "user": "u"}, {"consumer_byte_rate": 7}),
        ]
        of_a = QuotaFilter(entity_type="client-id", match_type=EXACT, match="a")
        of_all = QuotaFilter(entity_type="client-id", match_type=DEFAULT, match=None)
        of_any = QuotaFilter(entity_type="client-id", match_type=ANY, match=None)
        of_users = QuotaFilter(entity_type="user", match_type=ANY, match=None)
        assert await describe(broker, of_a) == [every[0], every[2]]
        assert await describe(broker, of_a, strict=True) == [every[0]]
        assert await describe(broker, of_all) == [every[1]]
        assert await describe(broker, of_any) == every
        assert await describe(broker, of_any, of_users) == [every[2]]
        assert await describe(broker, strict=True) == []
        await alter(
            broker,
            change({"client-id": "a"}, producer_byte_rate=None, consumer_byte_rate=1),
            change({"user": "u", "client-id": "a"}, consumer_byte_rate=None),
            change({"user": "nobody"}, consumer_byte_rate=None),
        )
        assert await describe(broker) == [
            ({"client-id": "a"}, {"consumer_byte_rate": 1}),
            ({"client-id": None}, {"producer_byte_rate": 5}),
        ]

    node.run(story)
    node.run(again)


def test_unenforced_quotas_are_kept_with_a_warning(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    kept: list[tuple[Names, dict[str, float]]] = [
        ({"user": "u"}, {"request_percentage": 12.5, "controller_mutation_rate": 0.5}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 7}),
        ({"ip": None}, {"connection_creation_rate": 9}),
    ]

    async def story(broker: Broker) -> None:
        answers = await alter(broker, *(change(entity, **values) for entity, values in kept))
        assert [each.error_code for each in answers] == [0, 0, 0]

    async def again(broker: Broker) -> None:
        assert sorted(await describe(broker), key=repr) == sorted(kept, key=repr)

    node.run(story)
    node.run(again)
    assert "request_percentage=12.5 of {'user': 'u'} is stored, but not enforced" in caplog.text


@pytest.mark.parametrize(
    ("entity", "rates", "says"),
    [
        ({}, {"producer_byte_rate": 1}, "name each type of an entity"),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1}, "did you mean 'connection_creation_rate'"),
        ({"ip": "10.0.0.1", "user": "u"}, {"connection_creation_rate": 1}, "quotas of an address"),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 1.5}, "whole number"),
        ({"group": "g"}, {"producer_byte_rate": 1}, "user, client-id, ip"),
        ({"client-id": ""}, {"producer_byte_rate": 1}, "use null for the default"),
        ({"client-id": "c"}, {"producer_byte_rates": 1}, "did you mean 'producer_byte_rate'"),
        ({"client-id": "c"}, {"request_percentage": 0}, "above 0"),
        ({"user": "u"}, {"controller_mutation_rate": float("nan")}, "above 0"),
        ({"user": "u"}, {"connection_creation_rate": 1}, "unknown quota"),
        ({"client-id": "c"}, {"producer_byte_rate": 0}, "above 0"),
        ({"client-id": "c"}, {"producer_byte_rate": 1.5}, "whole number"),
        ({"client-id": "c"}, {"producer_byte_rate": float("nan")}, "whole number"),
        ({"client-id": "c"}, {"producer_byte_rate": float("inf")}, "whole number"),
    ],
)
def test_an_invalid_quota_is_refused(
    node: Node, entity: Names, rates: dict[str, float], says: str
) -> None:
    async def story(broker: Broker) -> None:
        (answer,) = await alter(broker, change(entity, **rates))
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        with pytest.raises(AssertionError, match=says):
            raise AssertionError(answer.error_message)
        assert await describe(broker) == []

    node.run(story)


def test_an_entity_listed_twice_is_refused_and_others_are_altered(node: Node) -> None:
    async def story(broker: Broker) -> None:
        answers = await alter(
            broker,
            change({"client-id": "a", "user": "u"}, producer_byte_rate=1),
            change({"user": "u", "client-id": "a"}, producer_byte_rate=2),
            change({"client-id": "b"}, producer_byte_rate=3),
        )
        codes = [each.error_code for each in answers]
        assert codes == [ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_REQUEST, 0]
        assert await describe(broker) == [({"client-id": "b"}, {"producer_byte_rate": 3})]

    node.run(story)


@pytest.mark.parametrize(
    "wrong",
    [
        [QuotaFilter(entity_type="client-id", match_type=3, match=None)],
        [QuotaFilter(entity_type="client-id", match_type=EXACT, match=None)],
        [QuotaFilter(entity_type="client-id", match_type=ANY, match="a")],
        [QuotaFilter(entity_type="host", match_type=ANY, match=None)],
        [QuotaFilter(entity_type="user", match_type=ANY, match=None)] * 2,
    ],
)
def test_invalid_filters_are_refused(node: Node, wrong: list[QuotaFilter]) -> None:
    async def story(broker: Broker) -> None:
        request = DescribeClientQuotasRequest(components=wrong)
        response = await ask(broker, request, DescribeClientQuotasResponse)
        assert (response.error_code, response.entries) == (ErrorCode.INVALID_REQUEST, None)

    node.run(story)


NAMES = st.none() | st.sampled_from(["u", "v"])


@given(
    st.dictionaries(
        st.dictionaries(st.sampled_from([USER, CLIENT_ID]), NAMES, min_size=1).map(
            lambda names: entity_of(names.items())
        ),
        st.dictionaries(
            st.sampled_from([PRODUCE_RATE, FETCH_RATE]), st.integers(1, 99), min_size=1
        ),
    )
)
def test_quotas_survive_a_restart_unchanged(rates: dict[Entity, dict[str, int]]) -> None:
    node = Node(files=MemoryFiles())
    table = QuotaTable(rates)

    async def story(broker: Broker) -> None:
        changes = [change(dict(entity), **bounds) for entity, bounds in rates.items()]
        assert all(each.error_code == 0 for each in await alter(broker, *changes))

    async def again(broker: Broker) -> None:
        assert broker.directory.altered.quotas == table

    node.run(story)
    node.run(again)


def test_a_new_quota_applies_to_open_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "SWEEP_MS", 10)

    async def main() -> None:
        async with (
            Broker.open("data", files=MemoryFiles()) as broker,
            Acceptor(broker) as server,
            Log.open(f"kafka://{server.host}:{server.port}") as log,
            log.admin() as admin,
            peer(server) as one,
        ):
            create(broker)

            async def throttled() -> int:
                one.ask(produce_request(batch(b"x" * 12_000)), 1)
                _, response = await one.answer(ProduceRequest)
                assert isinstance(response, ProduceResponse)
                return response.throttle_time_ms

            async def become(expected: bool) -> None:
                deadline = time.monotonic() + 60
                while (await throttled() > 0) != expected:
                    assert time.monotonic() < deadline

            assert await throttled() == 0
            await admin.alter_client_quotas({"client-id": "peer"}, {"producer_byte_rate": 10_000})
            await become(True)
            await admin.alter_client_quotas(
                {"client-id": "peer", "user": "ANONYMOUS"}, {"producer_byte_rate": 10**9}
            )
            await become(False)
            quotas = await admin.describe_client_quotas()
            assert quotas[0] == ClientQuota({"client-id": "peer"}, {"producer_byte_rate": 10_000.0})
            await admin.alter_client_quotas({"client-id": "peer"}, {"producer_byte_rate": None})
            assert len(await admin.describe_client_quotas()) == 1
            with pytest.raises(LogError, match="did you mean"):
                await admin.alter_client_quotas({"client-id": "peer"}, {"byte_rate": 1})

    asyncio.run(main())
