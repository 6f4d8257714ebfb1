"""An app whose typed jobs run in processes of their own."""

from __future__ import annotations

import os

from bunqueue import Bunqueue, current_job

app = Bunqueue("app-in-process")


@app.job(run_in="process")
def halve(number: int) -> tuple[int, float, str]:
    return os.getpid(), number / 2, current_job().name


@app.job
async def here() -> int:
    return os.getpid()
