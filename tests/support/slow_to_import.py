"""A handler whose module takes its time, and says so in a file."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bunqueue import ActiveJob

if "SLOW_TO_IMPORT" in os.environ and "bunqueue.worker.processes.child" in __import__("sys").modules:
    Path(os.environ["SLOW_TO_IMPORT"]).write_text(str(os.getpid()))
    time.sleep(60)  # until it is killed


def handler(job: ActiveJob) -> int:
    return os.getpid()
