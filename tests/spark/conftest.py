"""One Spark session for all tests of a process, and data folders that real servers have made.

`make test` runs these tests in a process of their own: a session takes seconds to start and much memory.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.server import Server, dispose
from support.spark import Full, fill

from bunqueue.spark import spark_session

os.environ["SPARK_CONF_DIR"] = str(Path(__file__).with_name("conf"))  # also for the programs that tests start


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session: two cores, and three attempts for each task, so that retries can be tried."""
    session = spark_session(
        "tests",
        master="local[2,3]",
        spark__ui__showConsoleProgress="false",
        spark__sql__warehouse__dir=str(tmp_path_factory.mktemp("warehouse")),
        spark__log__level="ERROR",
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Full]:
    """Nobody writes to it any more."""
    folder = tmp_path_factory.mktemp("full") / "data"
    server = Server(folder)
    try:
        server.start()
        made, jobs = asyncio.run(fill(server))
        server.stop()
        yield Full(folder, made, jobs)
    finally:
        dispose(server)
