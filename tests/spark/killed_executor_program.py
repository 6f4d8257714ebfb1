"""Writes the jobs of a folder into a queue on a cluster, of which one executor is killed, as machines end.

    killed_executor_program.py DATA QUEUES PORT

Prints how many rows were accepted and duplicates, and how many tasks were repeated.
"""

import os
import signal
import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import functions as F

from bunqueue.spark import enqueue, spark_session

data, queues, port = sys.argv[1:]

# Two executors, which are processes of their own.
spark = spark_session(
    master="local-cluster[2,1,512]",
    spark__executor__memory="512m",
    spark__sql__shuffle__partitions="2",
    spark__ui__showConsoleProgress="false",
    spark__log__level="OFF",
)
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@F.udf("string", useArrow=False)  # with it, it would need pandas
def text(number: int, here: bool) -> str:
    """So much of it, and in no two rows the same, that rows do not wait for each other on their way."""
    context = TaskContext.get()
    if here and context is not None and context.attemptNumber() == 0:
        executor = parent(os.getppid())  # Python's processes are its grandchildren
        assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
        time.sleep(2)  # for what came before to be written
        os.kill(executor, signal.SIGKILL)
        time.sleep(60)  # until it is killed
    return f"{number:2000}"


jobs = spark.read.format("bunqueue").option("columns", "shard,seq,id").option("queues", queues).load(data)
whole = F.struct("id", text("seq", F.expr("shard = 0 and seq = 2000")).alias("text"))
summary = enqueue(jobs.select(whole.alias("data")), "killed", name="n", port=port, batchSize=50)
print(summary.accepted, summary.duplicates, summary.repeated_tasks)
