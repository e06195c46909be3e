"""Formatting: whose a data directory is.

An empty one becomes that of a broker of a cluster before that is started, that of a broker that is
alone when it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlog.broker.storage.catalog import Catalog, Identity, new_id
from streamlog.broker.storage.files import Files, directory_error, make_durable_directory
from streamlog.broker.storage.folders import partition_folders
from streamlog.broker.storage.os_files import OsFiles
from streamlog.errors import ConfigError, LogDirectoryLost

if TYPE_CHECKING:
    from streamlog.broker.config import BrokerConfig


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


def identified(catalog: Catalog, path: str, names: set[str], config: BrokerConfig) -> Identity:
    """Whose the directory at `path` is, that has these names in it; made so if nobody's.

    Raises:
        LogDirectoryLost: what says whose it is is missing, or a cluster's has to be made first.
        ConfigError: it is of another node.
        OSError: the disk refused.
    """
    identity = catalog.identity()
    if identity is None:
        left = partition_folders(names)
        if left:
            raise LogDirectoryLost(
                f"{path} has partitions ({left[0]}) and no meta.properties: restore that"
                " file from a copy, or start with an empty directory"
            )
        if config.quorum.voters:
            raise LogDirectoryLost(_not_of_a_cluster(path, config.node_id))
        identity = Identity(cluster_id=new_id(), node_id=config.node_id, directory_id=new_id())
        catalog.write_identity(identity)
    if identity.node_id != config.node_id:
        raise ConfigError(
            f"{path} belongs to node {identity.node_id}, and this broker is configured as"
            f" node {config.node_id}: change node.id, or use another directory"
        )
    return identity


def _not_of_a_cluster(path: str, node_id: int) -> str:
    return (
        f"{path} is no data directory of a cluster's node (yet), and controller.quorum.voters names"
        f" others: `streamlog cluster init --node {node_id} --cluster-id ID --data {path}` makes it"
        f" one; add --rejoin if node {node_id} was there before, and its directory is lost"
    )
