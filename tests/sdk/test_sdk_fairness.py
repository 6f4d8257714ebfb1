"""Groups take turns for users of this package; limits are declared on queue, worker and function."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from support.waiting import eventually

from bunqueue import ActiveJob, AsyncQueue, Bunqueue, NewJob, OptionError, Queue, RateLimit, Worker
from bunqueue.client.connection.endpoint_options import EndpointOptions


@dataclass
class Order:
    tenant: str
    number: int = 0


async def order_of_runs(queue: AsyncQueue, where: EndpointOptions, count: int, **options: Any) -> list[str]:
    """The groups of the next jobs, in the order in which a worker with one slot runs them."""
    ran: list[str] = []

    async def note(job: ActiveJob) -> None:
        ran.append(job.job().group or "")

    async with Worker(queue.name, note, **where, **options):
        await eventually(lambda: len(ran) >= count, f"{count} jobs have run")
    return ran


async def test_sixteen_jobs_of_one_group_do_not_go_before_four_of_another(
    queue: AsyncQueue, where: EndpointOptions
) -> None:
    await queue.add_bulk([NewJob("n", group="a") for _ in range(16)])
    await queue.add_bulk([NewJob("n", group="b") for _ in range(4)])
    assert await order_of_runs(queue, where, 20) == ["a", "b"] * 4 + ["a"] * 12


async def test_jobs_taken_by_hand_take_turns_too(queue: AsyncQueue) -> None:
    await queue.add_bulk([NewJob("n", group=group) for group in "aaab"])
    taken = [await queue.pull() for _ in range(2)]
    assert [each.job.group for each in taken if each is not None] == ["a", "b"]


async def test_the_higher_priority_is_first_within_a_group_too(queue: AsyncQueue) -> None:
    for priority in (0, 5, -5):
        await queue.add("n", priority, group="a", priority=priority)
    taken = [await queue.pull() for _ in range(3)]
    assert [each.job.data for each in taken if each is not None] == [5, 0, -5]


async def test_weights(queue: AsyncQueue, where: EndpointOptions) -> None:
    await queue.add_bulk([NewJob("n", group=group) for group in "ab" for _ in range(12)])
    acme = queue.group("a")
    assert await acme.weight() is None
    await acme.set_weight(3)
    assert await acme.weight() == 3
    assert Counter((await order_of_runs(queue, where, 12))[:12]) == {"a": 9, "b": 3}
    assert (await acme.clear_weight(), await acme.clear_weight()) == (True, False)
    with pytest.raises(OptionError, match="weight must be at least 1, not 0"):
        await acme.set_weight(0)


async def test_limits_for_every_group_that_appears(queue: AsyncQueue, where: EndpointOptions) -> None:
    await queue.set_group_defaults(concurrency=2, rate="100/min")
    defaults = await queue.group_defaults()
    assert (defaults.concurrency, defaults.max, defaults.duration) == (2, 100, 60_000)
    await queue.add_bulk([NewJob("n", group=group) for group in "aaabbb"])
    assert await most_at_once(queue, where, 6) == {"a": 2, "b": 2}
    await queue.set_group_defaults(rate=RateLimit(1, per=3_600_000))
    await queue.set_group_defaults(concurrency=None)
    defaults = await queue.group_defaults()
    assert (defaults.concurrency, defaults.max, defaults.duration) == (None, 1, 3_600_000)
    await queue.set_group_defaults(rate=None)
    assert (await queue.group_defaults()).max is None
    for rate in ("100", "0/min", "5/fortnight", 5):
        with pytest.raises(OptionError, match=r"rate: .*give a bunqueue\.RateLimit, or a text such as"):
            await queue.set_group_defaults(rate=rate)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="concurrency must be at least 1, not 0"):
        await queue.set_group_defaults(concurrency=0)


async def most_at_once(
    queue: AsyncQueue, where: EndpointOptions, count: int, **options: Any
) -> dict[str, int]:
    """How many jobs of each group a worker with many slots ran at a time; those that run wait for each other
    as long as more may come."""
    now, most = Counter[str](), Counter[str]()
    done = 0

    async def run(job: ActiveJob) -> None:
        nonlocal done
        group = job.job().group or ""
        now[group] += 1
        most[group] = max(most[group], now[group])
        await asyncio.sleep(0.03)  # as long as others may start meanwhile
        now[group] -= 1
        done += 1

    async with Worker(queue.name, run, concurrency=20, **where, **options):
        await eventually(lambda: done == count, f"{count} jobs have run")
    return dict(most)


async def test_limits_that_a_worker_declares(queue: AsyncQueue, where: EndpointOptions) -> None:
    await queue.add_bulk([NewJob("n", group=group) for group in "aaabbb"])
    await queue.group("b").set_concurrency(2)
    assert await most_at_once(queue, where, 6, group_concurrency=1) == {"a": 1, "b": 2}
    await queue.add_bulk([NewJob("n", group="c")] * 3)
    ran = await order_of_runs(queue, where, 1, group_rate=RateLimit(1, per=3_600_000))
    assert ran == ["c"]
    assert await queue.group("c").count() == 2
    for wrong in ({"group_concurrency": 0}, {"group_rate": "often"}):
        with pytest.raises(OptionError, match=next(iter(wrong))):
            Worker(queue.name, lambda job: None, **where, **wrong)  # type: ignore[arg-type]


async def test_the_jobs_of_one_group(queue: AsyncQueue) -> None:
    await queue.add_bulk([NewJob("n", number, group=group) for number, group in enumerate("abaab")])
    await queue.add("n", "later", group="a", delay=3_600_000)
    await queue.pull()
    acme = queue.group("a")
    assert [job.data for job in await acme.jobs()] == [0, 2, 3, "later"]
    assert [job.data for job in await acme.jobs(["waiting", "delayed"], limit=2, offset=1)] == [3, "later"]
    assert [job.data for job in await acme.jobs("active")] == [0]
    with pytest.raises(OptionError, match="state: 'lost' is unknown"):
        await acme.jobs("lost")


async def test_what_an_app_declares(where: EndpointOptions, name: str) -> None:
    app = Bunqueue(name, group_concurrency=2, group_rate="100/min", group_weights={"acme": 5}, **where)
    ran: list[str] = []

    @app.job(group=lambda order: order.tenant)
    async def ship(order: Order, express: bool = False) -> None:
        job = ship_jobs.pop(0)
        ran.append(job)

    ship_jobs = ["first", "second"]
    async with app:
        handle = await ship.add_async(Order("acme"))
        job = await app.async_queue.get_job(handle.id)
        assert job is not None
        assert job.group == "acme"
        again = await ship.options(group="other").add_async(Order("acme"))
        assert (await app.async_queue.get_job(again.id)).group == "other"  # type: ignore[union-attr]
        assert await app.async_queue.group("acme").weight() == 5
        defaults = await app.async_queue.group_defaults()
        assert (defaults.concurrency, defaults.max, defaults.duration) == (2, 100, 60_000)
        await eventually(lambda: len(ran) == 2, "both have run")
    assert ship.job(Order("zeta")).options["group"] == "zeta"
    (one, two) = await app.add_bulk_async(ship.job(Order(tenant)) for tenant in ("x", "y"))
    groups = [(await app.async_queue.get_job(each.id)).group for each in (one, two)]  # type: ignore[union-attr]
    assert groups == ["x", "y"]
    await app.close_async()


def test_the_group_of_a_function_is_checked_where_it_is_written() -> None:
    app = Bunqueue("checked", embedded=True)

    with pytest.raises(TypeError, match=r"group: its function asks for 'orders'; the job has order"):

        @app.job(group=lambda orders: orders)
        def wrong(order: str) -> None: ...

    @app.job(group=lambda number, **others: number)
    def numbered(number: int | None, other: str = "x") -> None: ...

    assert numbered.job(5).options["group"] == "5"
    assert numbered.job(None).options["group"] is None

    @app.job(group=lambda order: order["tenant"])
    def failing(order: dict[str, str]) -> None: ...

    with pytest.raises(OptionError, match="group: its function failed: KeyError: 'tenant'"):
        failing.job({})

    @app.job(group=lambda order: [order])
    def odd(order: str) -> None: ...

    with pytest.raises(OptionError, match=r"group: \['x'\] is not allowed; give a text"):
        odd.job("x")

    @app.job(group=lambda user: user)
    def known(user: UUID) -> None: ...

    assert known.job(UUID(int=1)).options["group"] == str(UUID(int=1))


def test_settings_of_groups_on_functions_must_agree() -> None:
    app = Bunqueue("agree", embedded=True)

    @app.job(group="a", group_concurrency=5, group_rate="5/s", group_weights={"a": 2})
    def one() -> None: ...

    @app.job(group="a", group_concurrency=5, group_weights={"b": 3})
    def two() -> None: ...

    with pytest.raises(OptionError, match="group_concurrency is 5 already, and not 6; say it once"):

        @app.job(group_concurrency=6)
        def three() -> None: ...

    with pytest.raises(OptionError, match="group_weights must be at most 1000, not 1001"):
        app.add_queue("other", group_weights={"a": 1001})
    with pytest.raises(OptionError, match="a queue has no option 'group_weight'"):
        app.add_queue("other", group_weight=5)  # type: ignore[call-arg]
    (config,) = [config for name, config in app._queue_configs.items() if name == "agree"]
    assert config.settings["group_weights"] == {"a": 2, "b": 3}


def test_the_blocking_client_has_it_too(where: EndpointOptions, name: str) -> None:
    with Queue(name, **where) as queue:
        queue.set_group_defaults(concurrency=1)
        queue.add("n", group="a")
        queue.group("a").set_weight(2)
        (group,) = queue.list_groups()
        assert (group.id, group.weight) == ("a", 2)
        assert len(queue.group("a").jobs()) == 1
        assert queue.group_defaults().concurrency == 1
