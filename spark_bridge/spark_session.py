"""Spark session: a session with the data source registered and the settings that it needs.

Workers must run this interpreter (the default is `python3` on PATH, without streamlog), times must
be UTC (a row's timestamp is an instant), and string hashes must agree between executors. Spark logs
one line per event on the driver's terminal, unless a log4j2 configuration exists.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from spark_bridge.data_source import StreamlogDataSource
from spark_bridge.java import ensure_java
from spark_bridge.state_source import StateDataSource
from streamlog.errors import ConfigError

LOOPBACK = "127.0.0.1"
CLUSTER = "spark://"
MASTER_TIMEOUT_S = 10
JAVA_OPTIONS = "spark.driver.extraJavaOptions"
EXECUTOR_JAVA_OPTIONS = "spark.executor.extraJavaOptions"
QUICK_JAVA = "-XX:TieredStopAtLevel=1"
"""Compiles at once, and never again. Where the JVM only passes bytes on, Java's second compiler
costs a third of the CPU of a history of two million rows."""
LOG4J = Path(__file__).with_name("log4j2.properties")


logger = logging.getLogger(__name__)


def register(spark: SparkSession) -> SparkSession:
    """Register the sources "streamlog" and "streamlog_state" with a session, and return it."""
    spark.dataSource.register(StreamlogDataSource)
    spark.dataSource.register(StateDataSource)
    return spark


def session(
    name: str = "streamlog",
    master: str = "local[*]",
    conf: Mapping[str, str] | None = None,
    *,
    is_light: bool = False,
) -> SparkSession:
    """Return a session on `master` with the data source registered.

    Args:
        name: the name of the application.
        master: the master's URL.
        conf: settings of Spark, which override those of this module.
        is_light: whether nearly all of its work is done in Python, so that Java should compile
            less. Has no effect if this process has a JVM of Spark already.

    Raises:
        ConfigError: there is no Java 17 or newer, or no master answers.
    """
    ensure_java()
    _check_master(master)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    settings = {
        **_addresses(master),
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.PYTHONHASHSEED": "0",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(conf or {}),
    }
    # After the user's settings: their Java options are kept, and ours are added.
    settings |= java_options(settings, os.environ, is_light=is_light)
    builder = SparkSession.builder.master(master).appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    logger.info("starting Spark on %s", master)
    return register(builder.getOrCreate())


def _check_master(master: str) -> None:
    """Check that a master of the cluster answers: Spark would retry for a minute silently."""
    reasons = []
    for address in master.removeprefix(CLUSTER).split(",") if master.startswith(CLUSTER) else ():
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), MASTER_TIMEOUT_S):
                return
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
    if reasons:
        raise ConfigError(
            f"no Spark master answers at {master} ({'; '.join(reasons)}): start it, or give the "
            "URL that its web page shows, such as spark://head:7077"
        )


def _addresses(master: str) -> dict[str, str]:
    """Return the driver's address: loopback, unless executors of a cluster have to reach it."""
    if not master.startswith("local"):
        return {}
    os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)
    return {"spark.driver.bindAddress": LOOPBACK}


def java_options(
    settings: Mapping[str, str], environment: Mapping[str, str], *, is_light: bool
) -> dict[str, str]:
    """Return the settings of Java's options: those that are given, with ours.

    The driver gets our log4j2 configuration if there is no other.
    """
    # A directory of settings has options of its own, which any given here would replace.
    if environment.get("SPARK_CONF_DIR"):
        return {}
    found = {each: settings.get(each, "") for each in (JAVA_OPTIONS, EXECUTOR_JAVA_OPTIONS)}
    if "log4j2.configurationFile" not in found[JAVA_OPTIONS]:
        found[JAVA_OPTIONS] = f"-Dlog4j2.configurationFile={LOG4J.as_uri()} {found[JAVA_OPTIONS]}"
    if is_light:
        # In front: of two options of one name, Java takes the last one.
        found = {name: f"{QUICK_JAVA} {options}" for name, options in found.items()}
    return {name: options.strip() for name, options in found.items() if options}
