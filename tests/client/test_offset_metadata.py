"""The group metadata of a consumer whose offsets a transaction commits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from streamlog.client.offset_metadata import GroupMetadata
from streamlog.errors import ConfigError, UnknownMember
from streamlog.log import Log
from streamlog.record import TopicPartition

OpenLog = Callable[..., AbstractAsyncContextManager[Log]]
T0 = TopicPartition("t", 0)


def test_group_metadata_identifies_a_member_and_a_lone_consumer(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log:
            async with log.consumer(group_id="g") as alone:
                alone.assign([T0])
                assert alone.group_metadata() == GroupMetadata(group_id="g")
            async with log.consumer(group_id="g", group_instance_id="i") as member:
                await member.subscribe(["t"])
                with pytest.raises(UnknownMember, match="is not a member of the group"):
                    member.group_metadata()
                while not member.assignment():
                    await member.poll(timeout_ms=1_000)
                known = member.group_metadata()
                assert (known.group_id, known.instance_id) == ("g", "i")
                assert known.generation_id > 0
                assert known.member_id

    asyncio.run(main())


def test_an_expelled_consumer_has_no_group_metadata(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer(group_id="g") as member:
            await member.subscribe(["t"])
            while not member.assignment():
                await member.poll(timeout_ms=1_000)
            assert member._group is not None
            assert member._group.member is not None
            member._group.member._react(25, 0)
            with pytest.raises(UnknownMember):
                member.group_metadata()

    asyncio.run(main())


def test_group_metadata_without_a_group_id_raises_an_error(open_log: OpenLog) -> None:
    async def main() -> None:
        async with open_log(t=1) as log, log.consumer() as consumer:
            with pytest.raises(ConfigError, match="group_id"):
                consumer.group_metadata()

    asyncio.run(main())
