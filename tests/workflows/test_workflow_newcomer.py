"""The order of docs/workflows.md, whose worker is killed in the middle of each of its steps: one receipt."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from support.server import ROOT, StartServer
from support.waiting import eventually

from bunqueue import Bunqueue

PATIENCE = 60_000

PROGRAM = r"""
import os, time
from dataclasses import dataclass
from bunqueue import Bunqueue, Flow, Retry, current_step

app = Bunqueue("orders")


def middle(what: str) -> None:
    # Says that a step is under way; the first time it stays there.
    with open(os.environ["STEPS"], "a") as file:
        file.write(what + "\n")
    with open(os.environ["STEPS"]) as file:
        if file.read().split("\n").count(what) == 1:
            time.sleep(60)  # until it is killed


@dataclass
class Order:
    id: str
    items: list[str]
    cents: int


@dataclass
class Receipt:
    charge: str
    parcels: list[str]


def pay(order: Order) -> str:
    middle("charge " + current_step().key)
    return f"charge of {order.cents} for {order.id}"


def refund(charge: str) -> None:
    middle("refund")


@app.job
def pack(item: str) -> str:
    middle(f"pack {item}")
    return f"parcel with {item}"


def ship(charge: str, parcels: list[str]) -> Receipt:
    middle("ship")
    return Receipt(charge, parcels)


@app.workflow(max_attempts=5)
async def order(flow: Flow, order: Order) -> Receipt:
    charge = await flow.step("charge", pay, order, undo=refund)
    await flow.sleep("cooling-off", seconds=1.5)
    if not await flow.wait_for("approval", bool):
        raise ValueError("not approved")
    parcels = await flow.gather(*(flow.run(pack, item) for item in order.items))
    return await flow.step("ship", ship, charge, parcels, retry=Retry(max_attempts=10, on=ConnectionError))
"""


class Steps:
    """What the steps have written, each once a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def runs(self) -> Counter[str]:
        return Counter(self.path.read_text().splitlines())

    def have_begun(self, number: int) -> bool:
        return len(self.runs()) >= number


async def test_a_kill_in_the_middle_of_each_step(make_server: StartServer, tmp_path: Path) -> None:
    server = make_server()
    server.start()
    (tmp_path / "shop.py").write_text(PROGRAM)
    steps = Steps(tmp_path / "steps")
    environment = {
        "PYTHONPATH": f"{ROOT}:{tmp_path}",
        "BUNQUEUE_URL": f"bunqueue://{server.host}:{server.port}",
        "STEPS": str(steps.path),
    }
    command = [sys.executable, "-m", "bunqueue", "worker", "shop:app"]

    def worker() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    working = worker()
    app = Bunqueue("orders", port=server.port)
    try:
        given = {"order": {"id": "7", "items": ["lamp", "book"], "cents": 4_200}}
        await app.async_queue.add("order", given, job_id="order-7", workflow=True, max_attempts=5)
        handle = app.async_queue.workflow("order-7")
        await handle.signal("approval", True)
        for number in range(1, 5):
            await eventually(partial(steps.have_begun, number), f"{number} steps have begun")
            working.kill()
            working.wait()
            working = worker()
        assert await handle.result(PATIENCE) == {
            "charge": "charge of 4200 for 7",
            "parcels": ["parcel with lamp", "parcel with book"],
        }
        found = {step.name: step.status for step in await handle.history()}
        names = ["charge", "cooling-off", "approval", "pack", "pack#2", "ship"]
        assert found == dict.fromkeys(names, "completed")
        runs = steps.runs()
        assert set(runs) == {
            "charge order-7:charge",
            "pack lamp",
            "pack book",
            "ship",
        }  # a charge has one key
        assert runs["charge order-7:charge"] == runs["ship"] == 2  # cut off once; a child may meet two kills
    finally:
        working.kill()
        await asyncio.to_thread(working.wait)
        await app.close_async()
