"""A Spark session that works after ``pip install 'bunqueue[spark]'``, on a machine with or without Java.

Any other session works as well if there is a Java: these settings are conveniences, not requirements.
"""

from __future__ import annotations

import atexit
import os
import re
import sys
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from bunqueue.errors import OptionError

from .java import java_home

# Spark would use the address of the host's name, which changes on a laptop with its network.
_LOOPBACK = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}

LEAST_MEMORY = 512 << 20  # Spark asks for 450 MiB, and Java counts some of it differently
_SHIFTS = {"k": 10, "m": 20, "g": 30, "t": 40}

_DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",  # it listens on all addresses
}


def spark_session(app_name: str = "bunqueue", *, master: str | None = None, **config: str) -> SparkSession:
    """The running session, or a new one, with the source ``bunqueue`` registered.

    ``master`` is Spark's option, ``local[*]`` unless spark-submit or ``config`` say otherwise; ``config`` has
    settings of Spark with ``__`` for dots: ``spark__driver__memory="4g"``.  A running session keeps its
    settings, except those in ``config``.  Raises NoJava when there is no Java, OptionError when it would have
    too little memory.
    """
    from .. import register

    settings = {name.replace("__", "."): value for name, value in config.items()}
    builder = SparkSession.builder
    if not _is_running():
        builder = builder.appName(app_name)
        settings = _for_new(master, settings)
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def _for_new(master: str | None, given: dict[str, str]) -> dict[str, str]:
    """The settings of a new session.  Also sets what its Java needs in this process."""
    settings = _DEFAULTS | given
    if _is_submitted():
        return settings if master is None else settings | {"spark.master": master}
    _check_memory(settings.get("spark.driver.memory"))
    settings = {"spark.master": master or "local[*]"} | settings
    if is_local(settings["spark.master"]):
        settings = _LOOPBACK | settings
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # or Spark warns about an unused address
    _prepare_process()
    return settings


def _check_memory(size: str | None) -> None:
    """Raise OptionError when Spark would end as soon as it starts, or Java would not even start."""
    if size is None:
        return
    parts = re.fullmatch(r"(\d+)([kmgt])b?", size.strip().lower())
    if parts is None or int(parts[1]) << _SHIFTS[parts[2]] < LEAST_MEMORY:
        raise OptionError(f"memory: {size} is not allowed; give 512m at least, such as 2g")


def _is_running() -> bool:
    """Whether there is a session, of this thread or another one."""
    return SparkSession.getActiveSession() is not None or SparkContext._active_spark_context is not None


def is_local(master: str) -> bool:
    """Whether Spark runs on this machine alone."""
    return master.startswith("local")


def starts_here(master: str | None) -> bool:
    """Whether a new session starts Spark on this machine, not by spark-submit and not on a cluster."""
    return is_local(master or "local") and not _is_submitted()


def _is_submitted() -> bool:
    """Whether spark-submit has started this process.  Java then already runs with its settings."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _prepare_process() -> None:
    """Set the Java and the Python that Spark starts."""
    # Spark would use the first python3 of the PATH, which may lack packages that this one has.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if SparkContext._gateway is not None:  # Java outlives the sessions
        return
    shims = tempfile.TemporaryDirectory(prefix="bunqueue-java-")
    atexit.register(shims.cleanup)
    os.environ["JAVA_HOME"] = str(java_home(os.environ, Path(shims.name)))
