"""Formatting: an empty directory becomes that of a broker of a cluster, before it is started."""

from __future__ import annotations

from streamlog.broker.storage.catalog import Catalog, Identity, new_id
from streamlog.broker.storage.files import Files, directory_error, make_durable_directory
from streamlog.broker.storage.os_files import OsFiles
from streamlog.errors import LogDirectoryLost


def format_directory(
    path: str,
    *,
    node_id: int,
    cluster_id: str | None = None,
    rejoins: bool = False,
    files: Files | None = None,
) -> Identity:
    """Make a directory that of a node of this cluster, or of a new one.

    A node `rejoins` if it was there before, and its directory is lost.

    Raises:
        LogDirectoryError: it belongs to a log already, or the disk refused.
    """
    files = OsFiles() if files is None else files
    catalog = Catalog(files, path)
    try:
        make_durable_directory(files, path)
        known = catalog.identity()
        if known is not None:
            raise LogDirectoryLost(
                f"{path} is of node {known.node_id} of cluster {known.cluster_id} already: use"
                " another directory, or remove this one"
            )
        identity = Identity(
            cluster_id=cluster_id or new_id(),
            node_id=node_id,
            directory_id=new_id(),
            rejoins=rejoins,
        )
        catalog.write_identity(identity)
    except OSError as error:
        raise directory_error(error, path) from error
    return identity
