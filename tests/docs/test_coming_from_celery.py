"""The module that docs/coming-from.md carries over from Celery does what it did there."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.server import StartServer

from bunqueue.testing import Sandbox

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"
FEATURES = ("delay(", "countdown=", "eta=", "expires=", "self.retry(", "chain(", "group(", "chord(")
FEATURES += ("task_routes", "beat_schedule", "task_failure", "worker_ready")


def section(language: str) -> str:
    text = PAGE.read_text(encoding="utf-8").partition("### A whole module")[2].partition("\n## ")[0]
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL))


def module(**options: Any) -> ModuleType:
    """The module, whose app finds its server so."""
    made = ModuleType("shop_tasks")
    source = section("python").replace('Bunqueue("shop")', f'Bunqueue("shop", **{options!r})')
    exec(compile(source, str(PAGE), "exec"), vars(made))
    return made


@pytest.fixture
def tasks(bunqueue: Sandbox) -> Iterator[ModuleType]:
    return module()


def outcomes(runs: list[Any]) -> list[tuple[str, str]]:
    return [(run.name.removeprefix("shop."), run.outcome) for run in runs]


def test_the_module_of_celery_has_all_of_it() -> None:
    source = section("py")
    ast.parse(source)
    assert len(source.splitlines()) > 170
    assert [feature for feature in FEATURES if feature not in source] == []
    names = {re.sub(r"^app\.", "", name) for name in re.findall(r'name="(shop\.\w+)"', source)}
    assert names == set(re.findall(r'name="(shop\.\w+)"', section("python"))), "each task has its job"


def test_delays_moments_and_ends(tasks: ModuleType, bunqueue: Sandbox) -> None:
    tasks.sign_up("ada@example.com")
    reminder = tasks.remind("ada@example.com", bunqueue.now + timedelta(days=1))
    other = tasks.remind("bob@example.com", bunqueue.now + timedelta(days=1))
    tasks.forget(other)
    bunqueue.advance(timedelta(hours=2))  # no worker was there: one is too old now
    handlers = {"mails": tasks.send_mail.handler}
    assert outcomes(bunqueue.drain(handlers)).count(("send_mail", "completed")) == 1
    bunqueue.drain(handlers, within=timedelta(days=4))
    assert tasks.outbox == [
        "ada@example.com: welcome",
        "ada@example.com: your table is ready",
        "ada@example.com: how do you like it?",
    ]
    assert reminder.state() == "completed"


def test_retries(tasks: ModuleType, bunqueue: Sandbox) -> None:
    down = tasks.send_mail.add("ada@down.example", "hello")
    unknown = tasks.send_mail.add("nobody", "hello")
    busy = tasks.charge_card.add(tasks.Order(1, "tea", 250, card="busy"))
    runs = bunqueue.drain(tasks.shop, within=timedelta(minutes=9))
    tried = {job.id: [run.at_ms for run in runs if run.id == job.id] for job in (down, unknown, busy)}
    waits = {
        job_id: [round((after - before) / 1000) for before, after in pairwise(at)]
        for job_id, at in tried.items()
    }
    assert waits == {down.id: [2, 4, 8, 16], unknown.id: [], busy.id: [60, 120]}
    assert {job.state() for job in (down, unknown, busy)} == {"failed"}


def test_a_chain_a_group_and_a_chord(tasks: ModuleType, bunqueue: Sandbox) -> None:
    shipped = tasks.buy(tasks.Order(7, "milk", 120))
    total = tasks.report(["north", "west"], "monday")
    mails = tasks.mail_all(["ada@example.com", "bob@example.com"], "sale")
    assert {job.queue for job in mails} == {"mails"}
    assert total.queue == "reports"
    bunqueue.drain(tasks.shop)
    bunqueue.drain(tasks.shop)
    assert shipped.result() == "shipped 7 paid 120"
    assert tasks.stock["milk"] == 9
    assert total.result() == "monday: 900"
    assert sorted(tasks.outbox) == [
        "ada@example.com: on its way: 7 paid 120",
        "ada@example.com: sale",
        "bob@example.com: sale",
    ]
    tasks.stock["tea"] = 0
    late = tasks.buy(tasks.Order(8, "tea", 250))
    bunqueue.drain(tasks.shop)
    assert late.state() == "failed", "as a chain ends in Celery, and it says why"
    assert "no tea left" in late.job().error


def test_states_stops_priorities_and_one_at_a_time(tasks: ModuleType, bunqueue: Sandbox) -> None:
    first, second = tasks.send_now("ada@example.com", "later"), tasks.send_now("nobody", "spring")
    stopped = tasks.send_mail.add("bob@example.com", "sale")
    tasks.stop(stopped.id)
    assert tasks.count_stock.add("milk").id == tasks.count_stock.add("milk").id
    assert tasks.count_stock.add("tea").created
    tasks.send_mail.options(priority=10).add("ada@example.com", "now")
    bunqueue.drain(tasks.shop)
    assert tasks.outbox == ["ada@example.com: now", "ada@example.com: later"]
    assert tasks.state_of(first.id) == "completed"
    assert tasks.state_of(second.id) == "failed: NoSuchAddress: nobody"


@pytest.mark.bunqueue(start="2026-03-02T00:00:00+01:00")
def test_schedules(tasks: ModuleType, bunqueue: Sandbox) -> None:
    runs = bunqueue.drain(tasks.shop, within=timedelta(hours=5))
    names = [name for name, _ in outcomes(runs)]
    assert (names.count("nightly"), names.count("total_sales"), names.count("sales_of")) == (1, 1, 2)
    assert tasks.stock["tea"] == 3 + 5 * names.count("restock")
    assert names.count("restock") in (29, 30)


@pytest.mark.parametrize("embedded", [False, True], ids=["server", "embedded"])
async def test_workers_run_it(embedded: bool, make_server: StartServer) -> None:
    options: dict[str, Any] = {"embedded": True}
    if not embedded:
        server = make_server()
        server.start()
        options = {"url": f"bunqueue://{server.host}:{server.port}"}
    tasks = module(**options)
    async with tasks.shop:
        shipped = await asyncio.to_thread(tasks.buy, tasks.Order(7, "milk", 120))
        total = await asyncio.to_thread(tasks.report, ["north", "west"], "monday")
        assert await asyncio.to_thread(shipped.result, 60_000) == "shipped 7 paid 120"
        assert await asyncio.to_thread(total.result, 60_000) == "monday: 900"
        failed = await asyncio.to_thread(tasks.send_mail.add, "nobody", "hello")
        outcome = await asyncio.to_thread(failed.wait, 60_000)
        assert outcome.state == "failed"
    await tasks.shop.close_async()
    assert (tasks.log[0], tasks.log[-1]) == ("ready", "bye")
    assert {"shop.reserve done", "shop.ship done", "shop.send_mail gave up: nobody"} <= set(tasks.log)
