"""`streamlog log`: checks, prints and repairs the files of a log without a broker.

The storage's `repair` package does the work; here its findings become tables, and `repair` asks
before it changes anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.markup import escape
from rich.table import Table as Grid

from streamlog.broker.storage.disk.os_files import OsFiles
from streamlog.broker.storage.repair.findings import Finding, FindingKind, InspectionReport
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.repair.partition_repair import (
    ADVICE,
    REPAIRED_KINDS,
    repair_partition,
)
from streamlog.broker.storage.repair.raw_partition import RawBatch, Unsound, batches_of_file
from streamlog.cli.output.plain_text import text_of
from streamlog.cli.output.progress_bar import BYTES, progress_bar
from streamlog.cli.output.record_format import plain_bytes
from streamlog.cli.terminal import JsonOption, out, say
from streamlog.errors import CorruptData, UsageError, quantity
from streamlog.records.batch import RecordBatch
from streamlog.records.control_batches import ABORT, COMMIT, marker_of, time_mark_of

EXIT_DAMAGED = 1
MARKER_NAMES = {ABORT: "ABORT", COMMIT: "COMMIT"}
MARKS = {"transactional": "is_transactional", "control": "is_control"}

log_commands = typer.Typer(
    help="Check, print and repair the files of a log, without a broker.", no_args_is_help=True
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The log's data directory.")]


@log_commands.command()
def verify(directory: Directory, *, as_json: JsonOption = False) -> None:
    """Read every batch and index, and list what is damaged; exits with 1 if anything is.

    While a broker runs on the directory, the end of each partition is not checked.
    """
    with Inspection.open(str(directory)) as inspection:
        _tell_holder(inspection)
        report = _verified(inspection)
    if as_json:
        typer.echo(json.dumps(_report_object(report), ensure_ascii=False))
    else:
        _show(report)
    if not report.is_sound:
        raise typer.Exit(EXIT_DAMAGED)


@log_commands.command()
def dump(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR", help="The log's data directory, or a file of lost-and-found."
        ),
    ],
    topic: Annotated[str | None, typer.Argument(help="The topic.")] = None,
    partition: Annotated[int | None, typer.Argument(help="The number of the partition.")] = None,
    offset: Annotated[
        int, typer.Option("--from", metavar="OFFSET", help="Start at the batch with this offset.")
    ] = 0,
    limit: Annotated[
        int | None,
        typer.Option("--limit", metavar="N", min=1, help="Print at most this many lines."),
    ] = None,
    *,
    records: Annotated[
        bool, typer.Option("--records", help="Print the records of each batch.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object per batch, one per line.")
    ] = False,
) -> None:
    """Print the batches of a partition or of a file; with --records, their records as well."""
    lines = partial(_json_lines if as_json else _dump_batches, records=records)
    if path.is_file():
        if topic is not None:
            raise UsageError(f"{path} is a file: give it alone, without a topic")
        for line in islice(lines(_batches_of(path, offset)), limit):
            say(line)
        return
    if topic is None or partition is None:
        raise UsageError(f"{path} is not a file: name a topic and a partition behind it")
    with Inspection.open(str(path)) as inspection:
        _tell_holder(inspection)
        stored = inspection.partition(topic, partition)
        for line in islice(lines(inspection.batches(stored, offset)), limit):
            say(line)


def _batches_of(path: Path, offset: int) -> Iterator[RawBatch | Unsound]:
    """Return what a file has from an offset on. Raises UsageError if it can't be read."""
    try:
        for each in batches_of_file(OsFiles(), str(path)):
            if each.next_offset is None or each.next_offset > offset:
                yield each
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error


@log_commands.command()
def repair(
    directory: Directory,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Repair without asking.")] = False,
) -> None:
    """Move damaged bytes out of the log so that the rest is readable; shows the loss and asks.

    The bytes go to files with the suffix .quarantine beside the segment.
    """
    with Inspection.open(str(directory)) as inspection:
        # A broker on the directory would write to the files meanwhile.
        inspection.check_alone()
        report = _verified(inspection)
        _show(report)
        repairable = [finding for finding in report.findings if finding.kind in REPAIRED_KINDS]
        if not repairable:
            _advise(report)
            say("nothing to repair" if report.is_sound else "nothing can be repaired")
            raise typer.Exit(0 if report.is_sound else EXIT_DAMAGED)
        say(_price(repairable))
        if not yes:
            typer.confirm("repair?", abort=True)
        for done in repair_partition(inspection, report):
            say(f"{done.path}: {done.what}")
        left = _verified(inspection)
    say("the rest of the log is readable" if left.is_sound else "some damage remains:")
    if not left.is_sound:
        _show(left)
        _advise(left)
        raise typer.Exit(EXIT_DAMAGED)


def _verified(inspection: Inspection) -> InspectionReport:
    with progress_bar(f"reading {inspection.path}", unit=BYTES) as bar:
        bar.total = inspection.log_bytes()
        return inspection.verify(on_read=bar.advance)


def _tell_holder(inspection: Inspection) -> None:
    if inspection.holder is not None:
        say(
            f"{inspection.holder}; the end of each partition is not checked while it writes",
            err=True,
        )


def _show(report: InspectionReport) -> None:
    counts = report.counts
    if report.findings:
        grid = Grid("partition", "what", "file", "position", "bytes", "offsets", "reason")
        for each in report.findings:
            cells = (
                f"{each.topic}-{each.partition}",
                each.kind.value,
                "/".join(each.path.rsplit("/", 2)[-2:]),
                str(each.position),
                str(each.size_bytes),
                _offsets(each),
                each.reason,
            )
            grid.add_row(*map(escape, cells))
        out(markup=True).print(grid)
    say(
        f"{quantity(counts.partitions, 'partition')}, {quantity(counts.segments, 'segment')}, "
        f"{quantity(counts.batches, 'batch', 'batches')}, {quantity(counts.records, 'record')}, "
        f"{quantity(counts.size_bytes, 'byte')}: {_verdict(report)}"
    )


def _report_object(report: InspectionReport) -> dict[str, object]:
    return {
        "is_sound": report.is_sound,
        **msgspec.to_builtins(report.counts),
        "findings": [
            {**msgspec.to_builtins(each), "is_damage": each.is_damage} for each in report.findings
        ],
    }


def _advise(report: InspectionReport) -> None:
    for kind in sorted({finding.kind for finding in report.findings} & ADVICE.keys()):
        say(f"{kind}: {ADVICE[kind]}")


def _verdict(report: InspectionReport) -> str:
    damaged = sum(finding.is_damage for finding in report.findings)
    if damaged:
        return quantity(damaged, "damaged part")
    if report.findings:
        return "sound; the next start cleans up what a crash has left"
    return "sound"


def _offsets(finding: Finding) -> str:
    if finding.first_offset is None:
        return "-"
    if finding.next_offset is None:
        return f"{finding.first_offset} to the end"
    if finding.next_offset <= finding.first_offset:
        return "none"
    return f"{finding.first_offset} to {finding.next_offset - 1}"


def _price(findings: Sequence[Finding]) -> str:
    """Return what a repair moves and gives up; damaged records are lost already."""
    offsets = sum(
        finding.next_offset - finding.first_offset
        for finding in findings
        if finding.kind in {FindingKind.DAMAGED, FindingKind.UNREADABLE, FindingKind.MISSING}
        and finding.first_offset is not None
        and finding.next_offset is not None
    )
    size_bytes = sum(finding.size_bytes for finding in findings)
    return (
        f"a repair moves {quantity(size_bytes, 'byte')} out of the log and gives up "
        f"{quantity(offsets, 'offset')}; the rest of the log stays unchanged"
    )


def _dump_batches(
    batches: Iterator[RawBatch | Finding | Unsound], *, records: bool
) -> Iterator[str]:
    path = ""
    for each in batches:
        if isinstance(each, Unsound):
            size = quantity(each.end_position - each.position, "byte")
            yield f"  damaged: {size} at {each.position}: {each.reason}"
            continue
        # The name of a file stands once, before its first batch.
        if each.path != path:
            path = each.path
            yield path
        if isinstance(each, Finding):
            where = (
                f"{quantity(each.size_bytes, 'byte')} at {each.position}, offsets {_offsets(each)}"
            )
            yield f"  {each.kind}: {where}: {each.reason}"
            continue
        yield _batch_line(each)
        if records:
            yield from _record_lines(each)


def _json_lines(batches: Iterator[RawBatch | Finding | Unsound], *, records: bool) -> Iterator[str]:
    for each in batches:
        if isinstance(each, RawBatch):
            found = _batch_object(each)
            if records and each.batch.is_control:
                found["control"] = [line.strip() for line in _marker_lines(each.batch)]
            elif records:
                found["records"] = _record_objects(each)
        else:
            found = {"what": "damaged", **msgspec.to_builtins(each)}
        yield json.dumps(found, ensure_ascii=False)


def _batch_object(placed: RawBatch) -> dict[str, object]:
    batch = placed.batch
    has_producer = batch.producer_id >= 0
    return {
        "what": "batch",
        "path": placed.path,
        "position": placed.position,
        "size_bytes": batch.size_bytes,
        "first_offset": batch.base_offset,
        "next_offset": batch.next_offset,
        "record_count": batch.record_count,
        "first_timestamp_ms": batch.base_timestamp_ms,
        "max_timestamp_ms": batch.max_timestamp_ms,
        "leader_epoch": batch.leader_epoch,
        "codec": _codec(batch),
        "producer_id": batch.producer_id if has_producer else None,
        "producer_epoch": batch.producer_epoch if has_producer else None,
        "base_sequence": batch.base_sequence if has_producer else None,
        **{attribute: getattr(batch, attribute) for attribute in MARKS.values()},
    }


def _record_objects(placed: RawBatch) -> list[dict[str, object]] | dict[str, str]:
    """Return the records of a batch; why they can't be decoded, if so."""
    try:
        found = placed.batch.records()
    except CorruptData as error:
        return {"error": str(error)}
    return [
        {
            "offset": each.offset,
            "timestamp_ms": each.timestamp_ms,
            "key": plain_bytes(each.key),
            "value": plain_bytes(each.value),
            "headers": [[name, plain_bytes(data)] for name, data in each.headers],
        }
        for each in found
    ]


def _batch_line(placed: RawBatch) -> str:
    batch = placed.batch
    parts = [
        f"  offsets {batch.base_offset} to {batch.last_offset}",
        f"at {placed.position}",
        quantity(batch.size_bytes, "byte"),
        quantity(batch.record_count, "record"),
        f"time {batch.base_timestamp_ms} to {batch.max_timestamp_ms}",
        f"epoch {batch.leader_epoch}",
        _codec(batch),
    ]
    if batch.producer_id >= 0:
        parts.append(
            f"producer {batch.producer_id} epoch {batch.producer_epoch} sequence"
            f" {batch.base_sequence}"
        )
    parts += [mark for mark, attribute in MARKS.items() if getattr(batch, attribute)]
    return ", ".join(parts)


def _codec(batch: RecordBatch) -> str:
    try:
        return batch.codec.name.lower()
    except CorruptData:
        return "unknown codec"


def _marker_lines(batch: RecordBatch) -> Iterator[str]:
    try:
        marker = marker_of(batch)
        mark = time_mark_of(batch)
    except CorruptData as error:
        yield f"    can't be decoded: {error}"
        return
    if mark is not None:
        yield f"    {mark.offset} time mark, {mark.elapsed_ms} ms without an append"
    elif marker is not None:
        kind = MARKER_NAMES.get(marker.kind, f"control record of type {marker.kind}")
        yield f"    {batch.base_offset} {kind}, coordinator epoch {marker.coordinator_epoch}"


def _record_lines(placed: RawBatch) -> Iterator[str]:
    try:
        records = placed.batch.records()
    except CorruptData as error:
        yield f"    can't be decoded: {error}"
        return
    if placed.batch.is_control:
        yield from _marker_lines(placed.batch)
        return
    for record in records:
        headers = "".join(f" {name}={text_of(value)}" for name, value in record.headers)
        key, value = text_of(record.key), text_of(record.value)
        yield f"    {record.offset} {record.timestamp_ms} {key} {value}{headers}"
