"""A producer's request that arrives late, over real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

from streamlog.broker.broker import Broker
from streamlog.broker.server.socket_server import Acceptor
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.transaction_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
)
from streamlog.transport.client_connection import TcpTransport
from tests.broker.node import create

PATIENCE_MS = 60_000


def test_a_commit_by_the_older_connection_does_not_end_the_next_transaction(tmp_path: Path) -> None:
    async def main() -> None:
        broker = Broker.open(str(tmp_path / "data"))
        async with broker, Acceptor(broker, "127.0.0.1", 0) as server:
            create(broker, partitions=1)

            async def connect() -> TcpTransport:
                return await TcpTransport.connect(
                    server.host, server.port, client_id="late", timeout_ms=PATIENCE_MS
                )

            old = await connect()
            init = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=PATIENCE_MS)
            begun = await old.call(init, timeout_ms=PATIENCE_MS)
            assert isinstance(begun, InitProducerIdResponse)
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=begun.producer_id,
                v3_and_below_producer_epoch=begun.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=[0])],
            )
            commit = EndTxnRequest(
                transactional_id="x",
                producer_id=begun.producer_id,
                producer_epoch=begun.producer_epoch,
                committed=True,
            )
            await old.call(add, timeout_ms=PATIENCE_MS)
            new = await connect()
            ended = await new.call(commit, timeout_ms=PATIENCE_MS, version_max=4)
            assert isinstance(ended, EndTxnResponse)
            assert ended.error_code == ErrorCode.NONE
            added = await new.call(add, timeout_ms=PATIENCE_MS)
            assert isinstance(added, AddPartitionsToTxnResponse)
            late = await old.call(commit, timeout_ms=PATIENCE_MS, version_max=4)
            assert isinstance(late, EndTxnResponse)
            assert late.error_code == ErrorCode.NOT_COORDINATOR
            ended = await new.call(commit, timeout_ms=PATIENCE_MS, version_max=4)
            assert isinstance(ended, EndTxnResponse)
            assert ended.error_code == ErrorCode.NONE
            await old.close()
            await new.close()

    asyncio.run(main())
