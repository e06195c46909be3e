"""A metadata log from before its quorum voted: one broker's own, in the files of a partition.

Its batches are what a member writes as well, at the offsets that brokers' epochs are made of. So it
is taken over where it stands: what is torn at its end goes, what is damaged is told, and beside it
is written down how far it was on disk, and that nobody has voted yet. After that last step it is a
member's. The indexes go then; a start in between does again what is missing.
"""

from __future__ import annotations

from streamlog.broker.config import TopicConfig
from streamlog.broker.quorum.quorum_files import FOLDER
from streamlog.broker.quorum.raft_messages import QuorumState
from streamlog.broker.quorum.state_file import QUORUM_STATE, FlushedEnd, write_state
from streamlog.broker.storage.epochs import EPOCHS
from streamlog.broker.storage.files import Files, directory_error
from streamlog.broker.storage.partition_log import PartitionLog
from streamlog.broker.storage.segment import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from streamlog.broker.storage.snapshots import SNAPSHOT_SUFFIX
from streamlog.errors import CorruptData

_OF_PARTITIONS = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, SNAPSHOT_SUFFIX, EPOCHS)
"""How the names of files end that a member has none of."""


def adopt(files: Files, directory: str, *, node_id: int) -> None:
    """Make a log of that kind a member's, if there is one in a data directory.

    Raises:
        CorruptData: it is damaged.
        LogDirectoryError: the disk refused; the next start goes on.
    """
    folder = f"{directory}/{FOLDER}"
    try:
        names = files.list(folder)
        left = [name for name in names if name.endswith(_OF_PARTITIONS)]
        if left and QUORUM_STATE not in names:
            _found(files, folder, node_id)
        for name in left:
            files.remove(f"{folder}/{name}")
        if left:
            files.sync_directory(folder)
    except FileNotFoundError:
        return  # The directory is new.
    except OSError as error:
        raise directory_error(error, folder) from error


def _found(files: Files, folder: str, node_id: int) -> None:
    """Write down what a member knows of its log."""
    log = PartitionLog.open(files, folder, name=FOLDER, config=TopicConfig(retention_ms=-1))
    if log.damage:
        log.discard()
        raise CorruptData(f"{FOLDER}: {log.damage[0]}; restore the directory's copy")
    end_offset, epoch = log.log_end_offset, max(0, log.epochs.current)
    log.flush()
    log.discard()
    flushed = FlushedEnd(files, folder)
    try:
        flushed.write(end_offset)
    finally:
        flushed.close()
    files.sync_directory(folder)
    write_state(files, folder, QuorumState(epoch=epoch, voters=(node_id,)))
