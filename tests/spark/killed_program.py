"""Two streams at a time, of events into Parquet and of rows into a queue, until they have caught up.

    killed_program.py PLACE DATA PORT

While there is a file PLACE/held, each holds one row back in the middle of a batch, for somebody to kill this.
"""

import sys
import time
from pathlib import Path

from pyspark.sql import Column
from pyspark.sql import functions as F

from bunqueue.spark import spark_session

place, data, port = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
held = str(place / "held")

spark = spark_session(master="local[4]", spark__ui__showConsoleProgress="false", spark__log__level="ERROR")
spark.conf.set(
    "spark.sql.execution.arrow.maxRecordsPerBatch", "100"
)  # some are written before others are read


@F.udf("string", useArrow=False)  # with it, it would need pandas
def text(number: int, here: bool) -> str:
    """So much of it, and in no two rows the same, that rows do not wait for each other on their way."""
    while here and Path(held).exists():
        time.sleep(0.05)  # between two looks
    return f"{number:2000}"


def with_text(number: Column, here: Column) -> Column:
    return text(number, here).alias("text")


events = spark.readStream.format("bunqueue").options(table="events", maxEventsPerBatch="100").load(data)
events = events.select("*", with_text(F.col("seq"), F.expr("shard = 1 and seq = 75")))
into_files = events.writeStream.format("parquet").option("checkpointLocation", str(place / "events"))

rows = spark.readStream.schema("number bigint").json(str(place / "in"))
jobs = rows.select(F.struct("number", with_text(F.col("number"), F.expr("number = 2000"))).alias("data"))
into_queue = jobs.writeStream.format("bunqueue").option("checkpointLocation", str(place / "jobs"))
into_queue = into_queue.options(port=port, queue="killed", name="n", batchSize="50")

queries = [
    into_files.trigger(availableNow=True).start(str(place / "lake")),
    into_queue.trigger(availableNow=True).start(),
]
for query in queries:
    query.awaitTermination()
