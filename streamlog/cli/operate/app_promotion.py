"""The promotion of an app at once: its mirrors are cut so that each transaction is whole or absent.

1. The mirrors are read (`AppScan`), and the cut is computed (`cut_app`).
2. The app's topics are paused, so that the link copies no positions of its group any more; the
   positions of the cut are committed. Workers of the app that run here already are looked for
   before and after the pause: they would commit other positions.
3. The controller decides in one step that each partition is cut, and promoted.
4. Leaders keep what is above the cut in `lost-and-found`, and cut it off, before they serve.

A command that is stopped before 3 leaves mirrors, and finds them when it is run again. After 3,
everything is decided, and the brokers do the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping

import msgspec
from rich.table import Table as Grid

from streamlog.broker.config.link import LinkConfig, apps_of
from streamlog.broker.coordinator.led_shards import shard_index
from streamlog.broker.mirroring.apps.app_cut import AppCut, Where
from streamlog.broker.mirroring.apps.app_history import Committed
from streamlog.broker.mirroring.apps.app_scan import AppScan
from streamlog.broker.mirroring.link_plan import POSITIONS_LOG, TRANSACTION_LOG
from streamlog.client.admin import (
    Admin,
    LinkDescription,
    MirrorDescription,
    MirrorStatus,
    PossibleLoss,
)
from streamlog.client.admin.lossless_promotion import check_stopped
from streamlog.client.offset_metadata import OffsetAndMetadata
from streamlog.errors import LogError, PromotionGivenUp, UsageError
from streamlog.record import TopicPartition

DECIDED = (
    MirrorStatus.PAUSED,
    MirrorStatus.STOPPED,
    MirrorStatus.PROMOTED,
    MirrorStatus.PROMOTING,
)
"""The states in which a topic can't be paused; in the others it copies."""
HERE = "in this cluster"


class AppPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the promotion of an app does."""

    app: str
    topics: tuple[str, ...]
    """What becomes this cluster's."""
    copying: tuple[str, ...]
    """Those of them that copy their source now."""
    ends: Mapping[Where, int]
    """Where their partitions end."""
    cut: AppCut
    positions: Mapping[Where, Committed]
    """Where the group stands at the cut."""
    read_bytes: int
    """How much was read."""

    def reasons(self) -> list[tuple[str, int]]:
        """Return why committed transactions are out, and how many for each reason."""
        return Counter(self.cut.out.values()).most_common()

    def rows(self, losses: Collection[PossibleLoss]) -> Iterator[tuple[PossibleLoss, int, int]]:
        """Yield for each partition what it may lack, where it ends here, and where it is cut."""
        for each in losses:
            where = each.topic, each.partition
            yield each, self.ends[where], self.cut.ends.get(where, self.ends[where])

    def grid(self, losses: Collection[PossibleLoss]) -> Grid:
        """Return the plan as a table; `?` stands for what no leader knows."""
        grid = Grid(
            *("partition", "end here", "cut at", "cut off"),
            *("source end", "source silent (s)"),
        )
        for each, end, cut in self.rows(losses):
            silent_s = None if each.silent_ms is None else each.silent_ms // 1000
            known = (end, cut, end - cut, each.source_end_offset, silent_s)
            grid.add_row(
                f"{each.topic}-{each.partition}",
                *("?" if number is None else str(number) for number in known),
            )
        return grid

    def as_json(self, losses: Collection[PossibleLoss]) -> dict[str, object]:
        """Return the plan as values of JSON."""
        return {
            "app": self.app,
            "promoted": self.topics,
            "partitions": [
                {**msgspec.to_builtins(each), "end": end, "cut": cut}
                for each, end, cut in self.rows(losses)
            ],
            "transactions_out": len(self.cut.out),
            "reasons": dict(self.reasons()),
            "positions": [
                {"topic": topic, "partition": number, "offset": each.offset}
                for (topic, number), each in sorted(self.positions.items())
            ],
            "read_bytes": self.read_bytes,
        }

    def cuts(self) -> dict[str, dict[int, int]]:
        """Return the cuts by topic."""
        found: dict[str, dict[int, int]] = {topic: {} for topic in self.topics}
        for (topic, number), offset in self.cut.ends.items():
            found[topic][number] = offset
        return found


def check_call(app: str, link: LinkDescription, topics: str | None) -> None:
    """Check what `--app` is combined with.

    Raises:
        UsageError: the link does not mirror the app, or topics are named, which the app decides.
    """
    if topics is not None:
        raise UsageError("--app promotes all topics of the app: leave --topics out")
    apps = apps_of(LinkConfig.of(link.settings))
    if app not in apps:
        there = f"its apps are {', '.join(apps)}" if apps else "it has none"
        raise UsageError(f"link {link.name} mirrors no app {app!r}: {there}")


async def mirrors_of(
    admin: Admin, link: LinkDescription, app: str, mirrors: Collection[MirrorDescription]
) -> list[MirrorDescription]:
    """Return those of a link's mirrors that move with an app: all, if the link has no other app.

    Raises:
        UsageError: the link has several apps, and nothing tells yet which topics are this one's.
    """
    left = [each for each in mirrors if each.status is not MirrorStatus.PROMOTED]
    if is_alone(link) or not left:
        return [*mirrors]
    try:
        plan = await plan_promotion(admin, link, app, left)
    except LogError as error:
        raise UsageError(
            f"link {link.name} has several apps, and which of its topics are those of {app} is not"
            f" known ({error}): promote them by --topics PATTERN instead of --app"
        ) from error
    # The source may still have to note those that were promoted before.
    return [each for each in mirrors if each not in left or each.name in plan.topics]


def is_alone(link: LinkDescription) -> bool:
    """Return whether a link has one app, so that all that it mirrors is for it."""
    return len(apps_of(LinkConfig.of(link.settings))) == 1


async def plan_promotion(
    admin: Admin, link: LinkDescription, app: str, mirrors: Collection[MirrorDescription]
) -> AppPlan:
    """Read the mirrors of an app, and return what its promotion at once does.

    Args:
        admin: this cluster.
        link: the link.
        app: the app.
        mirrors: what the link mirrors.

    Raises:
        LogError: there is no consistent cut, or a mirror can't be read.
    """
    logs = await admin.app_logs(link.name)
    scan = AppScan(
        app,
        {each.name: each.num_partitions for each in mirrors},
        home=shard_index(app, logs.mirrors.get(POSITIONS_LOG, ("", 1))[1]),
        mark=logs.mark,
        is_alone=is_alone(link),
    )
    reading = _Reading(admin, {theirs: ours for theirs, (ours, _) in logs.mirrors.items()})
    for number, log in scan.transaction_logs.items():
        await reading.read((TRANSACTION_LOG, number), 0, log.add)
    scan.on_transactions()
    await reading.read(scan.home, 0, scan.positions.add)
    scan.on_positions()
    for where, reader in scan.readers().items():
        await reading.read(where, scan.scan_from(where), reader.add)
    cut = scan.cut(reading.ends)
    topics = scan.promoted
    return AppPlan(
        app=app,
        topics=tuple(topics),
        copying=tuple(e.name for e in mirrors if e.name in topics and e.status not in DECIDED),
        ends={where: end for where, end in reading.ends.items() if where[0] in topics},
        cut=cut,
        positions=scan.positions_at(cut),
        read_bytes=reading.bytes,
    )


class _Reading:
    """Reads mirrors, one after another."""

    def __init__(self, admin: Admin, names: Mapping[str, str]) -> None:
        self._admin = admin
        self._names = names
        self.ends: dict[Where, int] = {}
        """Where each partition that was read ends, by the names of the source."""
        self.bytes = 0

    async def read(self, where: Where, start: int, add: Callable[..., None]) -> None:
        """Read a partition from an offset to its end."""
        topic, number = where
        partition = TopicPartition(self._names.get(topic, topic), number)
        self.ends[where] = (await self._admin.ends_of([partition]))[partition]
        async for batch in self._admin.stored_batches(partition, start, self.ends[where]):
            self.bytes += batch.size_bytes
            add(batch)


async def carry_out(admin: Admin, plan: AppPlan) -> None:
    """Promote an app.

    Raises:
        PromotionGivenUp: it has workers here; nothing has changed.
        LogError: a topic was promoted meanwhile.
    """
    await check_stopped(admin, plan.app, HERE)
    if plan.copying:
        await admin.pause_mirrors(plan.copying)
    try:
        await check_stopped(admin, plan.app, HERE)
    except PromotionGivenUp:
        if plan.copying:
            await admin.resume_mirrors(plan.copying)
        raise
    # No broker copies positions any more, so these stay. After the decision they are the workers'.
    await _set_positions(admin, plan)
    await admin.promote_app_now(plan.cuts())
    # It returns once all partitions have leaders, which are cut.
    await admin.ends_of([TopicPartition(*where) for where in plan.ends])


async def _set_positions(admin: Admin, plan: AppPlan) -> None:
    """Let the app's group stand where it does at the cut, and nowhere else in its topics."""
    wanted = {
        TopicPartition(*where): OffsetAndMetadata(each.offset, each.metadata)
        for where, each in plan.positions.items()
    }
    found = await admin.group_offsets_and_metadata(plan.app)
    changed = {
        where: each
        for where, each in wanted.items()
        if where not in found
        or (found[where].offset, found[where].metadata) != (each.offset, each.metadata)
    }
    if changed:
        await admin.alter_group_offsets(plan.app, changed)
    ahead = [where for where in found if where.topic in plan.topics and where not in wanted]
    if ahead:
        await admin.delete_group_offsets(plan.app, ahead)
