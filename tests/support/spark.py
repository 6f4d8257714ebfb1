"""Data folders for Spark, and reading them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from . import everything
from .server import Server
from .wire import Reply, Wire


@dataclass(frozen=True)
class Full:
    """A folder with all that a server can hold, and what the server said of it before it stopped."""

    folder: Path
    made: everything.Made
    jobs: dict[str, Reply]  # GetJob by id


async def fill(server: Server) -> tuple[everything.Made, dict[str, Reply]]:
    """Put all that there is into a server, and ask for its jobs."""
    wire = await Wire.open(server.address)
    await wire.ok("Hello", protocolVersion=3)
    made = await everything.fill(wire)
    jobs = {job_id: (await wire.call("GetJob", id=job_id)) for job_id in made.ids}
    await wire.close()
    return made, {job_id: reply["job"] for job_id, reply in jobs.items() if reply["ok"]}


def read(spark: SparkSession, folder: Path | str, table: str = "jobs", **options: Any) -> DataFrame:
    """A table of a data folder."""
    reader = spark.read.format("bunqueue").option("table", table)
    return reader.options(**options).load(str(folder))


def without_java(tools: Path) -> dict[str, str]:
    """This environment without the machine's Java; ``tools`` becomes the folder of all other programs."""
    tools.mkdir()
    for folder in reversed(os.get_exec_path()):
        for program in Path(folder).glob("[!j]*"):
            (tools / program.name).unlink(missing_ok=True)
            (tools / program.name).symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return kept | {"PATH": str(tools)}
