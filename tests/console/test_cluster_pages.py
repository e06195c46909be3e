"""Mirrors, moves, quotas, users and ACLs in the console of a real broker."""

from __future__ import annotations

import asyncio

from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.client.admin import MirrorStatus
from streamlog.console.pages.cluster_pages import AclRow, MoveRow, acls, moves
from streamlog.log import Log
from tests.broker.mirroring.test_mirrors import serving
from tests.console.consoles import Page, console, fill, wait_for

MIRROR = "/console/mirrors/t"


async def until_status(log: Log, wanted: MirrorStatus) -> None:
    """Ask until the one mirror topic has a status: another process could not wait for an event."""
    while [each.status for each in (await log.admin().describe_mirrors()).mirrors] != [wanted]:  # noqa: ASYNC110 - see above
        await asyncio.sleep(0.01)


def test_a_mirror_is_paused_and_resumed() -> None:
    async def main() -> None:
        async with (
            serving(MemoryFiles()) as (source, at),
            Log.open(f"kafka://{at}") as there,
            console() as (browser, log),
        ):
            await fill(there, "t", b"1", b"2", b"3")
            settings = {"bootstrap.servers": at, "topics": "t", "refresh.topics.interval.ms": "50"}
            await log.admin().create_link("east", settings, source_cluster_id=source.cluster_id)
            await until_status(log, MirrorStatus.ACTIVE)
            await wait_for(browser, "/console/mirrors", "east")
            page = Page((await browser.get(MIRROR)).text)
            assert "Pause the mirror" in page.text
            for action, wanted in (("pause", MirrorStatus.PAUSED), ("resume", MirrorStatus.ACTIVE)):
                form = page.fields()
                cross = {"origin": "https://evil.example"}
                answer = await browser.post(f"{MIRROR}/{action}", data=form, headers=cross)
                assert answer.status_code == 403
                done = await browser.post(f"{MIRROR}/{action}", data=form, follow_redirects=True)
                assert done.url.path == MIRROR
                await until_status(log, wanted)
            refused = await browser.post("/console/mirrors/none/pause", data=form)
            assert "none" in Page(refused.text).text
            assert "pause mirror t done" in Page((await browser.get("/console/changes")).text).text
            # The lag over time has a point for each look.
            await wait_for(browser, MIRROR, "Partitions")

    asyncio.run(main())


def test_quotas_and_users_are_listed() -> None:
    async def main() -> None:
        async with console() as (browser, log):
            admin = log.admin()
            entity = {"user": "ann", "client-id": None}
            await admin.alter_client_quotas(entity, {"producer_byte_rate": 1024.0})
            await admin.set_password("ann", "secret")
            shown = Page((await browser.get("/console/brokers/quotas")).text).text
            assert "ann default producer 1 KiB/s" in shown
            shown = Page((await browser.get("/console/brokers/users?q=AN")).text).text
            assert "ann SCRAM-SHA-256" in shown
            assert (
                "Nothing contains this" in (await browser.get("/console/brokers/users?q=bob")).text
            )
            # Without an authorizer there are none, and the page says why.
            assert "not known" in (await browser.get("/console/brokers/acls")).text
            assert "No partition moves" in (await browser.get("/console/brokers/moves")).text
            assert (await browser.get("/console/brokers/none")).status_code == 404

    asyncio.run(main())


def test_rules_and_moves_are_shown_as_text() -> None:
    rule = AclRow(
        principal="User:<b>",
        host="*",
        permission="DENY",
        operation="DESCRIBE_CONFIGS",
        kind="TOPIC",
        name="pay-",
        is_prefix=True,
    )
    shown = acls([rule], {}).content.text
    assert "User:&lt;b&gt;" in shown
    assert "describe configs" in shown
    assert "and all that begin so" in shown
    move = MoveRow(topic="t", partition=3, replicas=(1, 2, 4), adding=(4,), removing=(2,))
    text = Page(moves([move], {}).content.text).text
    assert "t-3 1, 2, 4 4 2" in text
