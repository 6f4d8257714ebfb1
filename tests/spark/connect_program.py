"""Reads a folder, streams its events and writes jobs over Spark Connect, whose server this starts.

    connect_program.py DATA PORT SCRATCH

Prints how many jobs and events there are, what became of the rows, and what a report says.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from bunqueue import OptionError, analytics
from bunqueue.spark import enqueue, register
from bunqueue.spark.sessions.java import java_home

data, port, scratch = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
os.environ["JAVA_HOME"] = str(java_home(os.environ, scratch / "java"))
os.environ["PYSPARK_PYTHON"] = sys.executable

spark = SparkSession.builder.remote("local[2]").getOrCreate()
register(spark)
print(spark.read.format("bunqueue").load(data).count())

events = spark.readStream.format("bunqueue").option("table", "events").load(data)
writer = events.writeStream.format("parquet").option("checkpointLocation", str(scratch / "checkpoint"))
writer.trigger(availableNow=True).start(str(scratch / "lake")).awaitTermination()
print(spark.read.parquet(str(scratch / "lake")).count())

print(enqueue(spark.range(500).select(F.struct("id").alias("data")), "connect", name="n", port=port))

try:
    analytics.aggregate(analytics.From([data]), scratch / "figures", made=analytics.Made(spark))
except OptionError as error:
    print(error)
