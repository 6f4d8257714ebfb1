"""Which exceptions a job is retried after, how long it waits, and what is kept of its attempts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import eventually

from bunqueue import (
    ActiveJob,
    AsyncQueue,
    Backoff,
    Bunqueue,
    FlowJob,
    JobFailed,
    NewJob,
    OptionError,
    Queue,
    RetryRules,
    Route,
    Worker,
    current_job,
    retry_after,
)
from bunqueue.client.connection.endpoint_options import EndpointOptions
from bunqueue.client.options.job import wire_fields
from bunqueue.testing import Sandbox


class Declined(Exception):
    pass


class Stolen(Declined):
    pass


class Slotted(Exception):
    __slots__ = ()


class Busy(Exception):
    def __init__(self, retry_after: object) -> None:
        super().__init__("busy")
        self.retry_after = retry_after


def raising(*errors: BaseException) -> Callable[[ActiveJob], str]:
    """A handler that raises one after the other, and then gives back "done"."""
    left = list(errors)

    def handler(job: ActiveJob) -> str:
        if left:
            raise left.pop(0)
        return "done"

    return handler


def in_process(job: ActiveJob) -> None:
    raise Stolen if job.data == "stolen" else ConnectionResetError("away")


# -- what is sent


@pytest.mark.parametrize(
    ("backoff", "sent"),
    [
        (Backoff(100, "constant"), {"delay": 100, "type": "fixed", "jitter": 0.1}),
        (Backoff(100, "linear", 0), {"delay": 100, "type": "linear", "jitter": 0}),
        (
            Backoff(100, max_delay=timedelta(seconds=5), retry_after=True),
            {"delay": 100, "type": "exponential", "jitter": 0.1, "maxDelay": 5000, "retryAfter": True},
        ),
        (
            [1_000, timedelta(seconds=5), 60_000],
            {"delay": 60_000, "type": "fixed", "delays": [1000, 5000], "jitter": 0.1},
        ),
        ([500], {"delay": 500, "type": "fixed", "delays": [500], "jitter": 0.1}),
        (
            Backoff(timedelta(hours=2), "fixed", 0),
            {"delay": 7_200_000, "type": "fixed", "jitter": 0, "maxDelay": 7_200_000},
        ),
    ],
)
def test_how_a_backoff_is_said(backoff: Any, sent: dict[str, Any]) -> None:
    assert wire_fields({"backoff": backoff}, {})["backoff"] == sent


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"backoff": Backoff(5, delays=[1])}, "backoff: delays says all waits already"),
        ({"backoff": []}, r"backoff: delays: \[\] is not allowed; give a list of times"),
        ({"backoff": [1, "x"]}, "backoff: delays: 'x' is no span of time"),
        ({"backoff": Backoff(5, "slow")}, "backoff: type: 'slow' is unknown"),
        ({"backoff": Backoff(5, max_delay=-1)}, "backoff: max_delay"),
        ({"retry_on": [5]}, "retry_on: 5 is no class of errors; give some"),
        ({"retry_on": int}, "retry_on: <class 'int'> is no class of errors"),
        ({"never_on": ["two words"]}, "never_on: 'two words' is no class"),
        ({"retryOn": []}, "retryOn"),
    ],
)
def test_rules_that_are_not_allowed(options: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        wire_fields(options, {})


def test_classes_go_by_their_names() -> None:
    fields = wire_fields({"retry_on": [ConnectionError, "httpx.ConnectTimeout"], "never_on": Declined}, {})
    assert fields["retry_on"] == ["ConnectionError", "httpx.ConnectTimeout"]
    assert fields["never_on"] == [f"{__name__}.Declined"]


# -- what a job says


async def test_rules_and_waits_of_a_job(where: EndpointOptions) -> None:
    handlers = {
        "never": raising(ConnectionError("away"), Stolen("no")),
        "on": raising(ConnectionResetError("away"), ValueError("wrong")),
        "after": raising(Busy(0.02), Busy(0.01)),
    }
    async with AsyncQueue("rules", **where) as queue, Worker("rules", handlers, concurrency=3, **where):
        never = await queue.add("never", backoff=1, max_attempts=9, never_on=[Declined])
        on = await queue.add("on", backoff=1, max_attempts=9, retry_on=[ConnectionError])
        after = await queue.add("after", backoff=Backoff(60_000, max_delay=15, retry_after=True))
        assert await after.result(60_000) == "done"
        for job, error in ((never, "Stolen: no"), (on, "ValueError: wrong")):
            with pytest.raises(JobFailed, match=error):
                await job.result(60_000)
        kept = [(each.number, each.outcome, each.error_type, each.delay) for each in await after.attempts()]
        busy = f"{__name__}.Busy"
        assert kept[:2] == [(1, "explicit_fail", busy, 15), (2, "explicit_fail", busy, 10)]
        assert kept[2] == (3, "completed", None, None)
        assert [each.error_type for each in await never.attempts()] == [
            "ConnectionError",
            f"{__name__}.Stolen",
        ]
        entry = next(each for each in await queue.dlq_entries() if each.job.id == on.id)
        assert [each.error_type for each in entry.attempts] == ["ConnectionResetError", "ValueError"]
        assert entry.attempts[0].delay is not None
        assert (await on.job()).retry_on == ["ConnectionError"]
        assert ((await after.job()).backoff_config or {})["retryAfter"] is True


async def test_the_log_says_in_which_attempt(where: EndpointOptions) -> None:
    async def handler(job: ActiveJob) -> None:
        await job.log(f"try {job.attempts}")
        if not job.attempts:
            raise ValueError

    async with AsyncQueue("logged", **where) as queue, Worker("logged", handler, **where):
        job = await queue.add("n", backoff=20)  # moments are told apart by ms
        await job.result(60_000)
        assert [(line.message, line.attempt) for line in await job.logs()] == [("try 0", 1), ("try 1", 2)]


# -- what a function, a worker, a route or a batch says


async def test_rules_of_functions(where: EndpointOptions) -> None:
    app = Bunqueue("ruled", default_job_options={"backoff": 60_000, "max_attempts": 4}, **where)
    asked: list[tuple[str, int]] = []

    def soon(job: ActiveJob, error: BaseException) -> int | None:
        asked.append((type(error).__name__, job.attempts))
        return 5 if isinstance(error, ConnectionError) else None

    @app.job(retry_on=[ConnectionError], never_on=[ConnectionRefusedError], retry_delay=soon)
    async def listed(kind: str) -> str:
        tries.append(kind)
        if len(tries) < 3:
            raise {"away": ConnectionError, "refused": ConnectionRefusedError, "value": ValueError}[kind]
        return "done"

    @app.job(retry_if=lambda job, error: "again" in str(error))
    def asked_for(text: str) -> None:
        raise Slotted(text)

    @app.job(retry_if=lambda job, error: 1 / 0, retry_delay=lambda job, error: 1)
    def broken_rule() -> None:
        raise ValueError("mine")

    @app.batch("batch", max_wait=5, retry=RetryRules(never=[Declined]))
    async def batch(jobs: list[ActiveJob]) -> list[object]:
        return [Stolen("no")] * len(jobs)

    @app.route("route", retry=RetryRules(on="OSError"))
    async def route(job: ActiveJob) -> None:
        raise ValueError("wrong")

    exhausted: list[str] = []
    app.on("exhausted")(lambda job, error: exhausted.append(job.name))
    async with app:
        tries: list[str] = []
        assert await (await listed.add_async("away")).result(60_000) == "done"
        for kind in ("refused", "value"):
            tries.clear()
            with pytest.raises(JobFailed, match="after 1 attempt"):
                await (await listed.add_async(kind)).result(60_000)
        tries.clear()  # what a job says comes first
        own = await listed.options(retry_on=[ValueError], backoff=1).add_async("value")
        assert await own.result(60_000) == "done"
        with pytest.raises(JobFailed, match=r"after 1 attempt: .*Slotted: enough"):
            await (await asked_for.add_async("enough")).result(60_000)
        again = await asked_for.options(backoff=1, max_attempts=2).add_async("again")
        with pytest.raises(JobFailed, match="after 2 attempts"):
            await again.result(60_000)
        broken = await broken_rule.options(max_attempts=1).add_async()
        with pytest.raises(JobFailed, match="ValueError: mine"):
            await broken.result(60_000)
        assert "its retry rule raised ZeroDivisionError" in ((await broken.attempts())[0].stack or "")
        for name in ("batch", "route"):
            with pytest.raises(JobFailed, match="after 1 attempt"):
                await (await app.add_async(name)).result(60_000)
        await eventually(lambda: len(exhausted) == 7, "all hooks were called")
    assert ("ConnectionError", 0) in asked


async def test_rules_of_workers_and_routes(where: EndpointOptions) -> None:
    never = RetryRules(never=["Declined"])
    handlers = {
        "away": Route(in_process, run_in="process"),
        "other": Route(raising(ValueError("a"), ValueError("b")), retry=RetryRules(on=OSError)),
    }
    async with AsyncQueue("workers", default_job_options={"backoff": 1}, **where) as queue:
        async with Worker("workers", handlers, concurrency=2, retry=never, **where):
            for name, data, error in (
                ("away", "stolen", "after 1 attempt: Stolen"),
                ("away", "away", "after 2 attempts: ConnectionResetError: away"),
                ("other", None, "after 1 attempt: ValueError: a"),
            ):
                job = await queue.add(name, data, max_attempts=2)
                with pytest.raises(JobFailed, match=error):
                    await job.result(60_000)
                types = [each.error_type for each in await job.attempts()]
                assert types[0] in (f"{__name__}.Stolen", "ConnectionResetError", "ValueError")


async def test_a_job_for_those_that_have_failed_for_good(where: EndpointOptions) -> None:
    app, ops = Bunqueue("shop-dead", **where), Bunqueue("ops-dead", **where)
    told: list[Any] = []

    @ops.job
    async def alarm(team: str = "all") -> None:
        told.append((team, current_job().cause))

    @app.job(never_on=[Declined], on_dead=alarm.job("billing"))
    async def pay() -> None:
        raise Stolen("no")

    async with app, ops:
        by_function = await pay.add_async()
        await by_function.wait(60_000)
        by_job = await pay.options(on_dead=alarm).add_async()  # without arguments
        await by_job.wait(60_000)
        queue = app.async_queue
        plain = await queue.add("pay", {}, on_dead=NewJob("note", {"a": 1}, max_attempts=9, delay=60_000))
        await plain.wait(60_000)
        await eventually(lambda: len(told) == 2, "both alarms have run")
        assert {(team, cause.id) for team, cause in told} == {("billing", by_function.id), ("all", by_job.id)}
        cause = told[0][1]
        assert (cause.queue, cause.name, cause.error) == ("shop-dead", "pay", "Stolen: no")
        assert (cause.error_type, cause.attempts) == (f"{__name__}.Stolen", 1)
        (note,) = await queue.get_jobs("delayed")
        assert (note.name, note.data, note.max_attempts) == ("note", {"a": 1}, 9)
        assert note.cause is not None
        assert note.cause.id == plain.id
        shown = (await plain.job()).on_dead
        assert shown is not None
        assert (shown.queue, shown.name) == ("shop-dead", "note")


@pytest.mark.parametrize(
    ("on_dead", "problem"),
    [
        ("alarm", "on_dead: 'alarm' is no job; give a bunqueue.NewJob"),
        (NewJob("a", unique_key="k"), "on_dead: unique_key is not possible here"),
        (NewJob("a", prio=1), "prio"),  # type: ignore[call-arg]
        (FlowJob("a", queue="q").after(FlowJob("b", queue="q")), "on_dead: .* waits for others"),
    ],
)
def test_jobs_that_cannot_be_added_later(on_dead: Any, problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        wire_fields({"on_dead": on_dead}, {})


def test_functions_need_the_exception_itself() -> None:
    rules = RetryRules(when=lambda job, error: True)
    with pytest.raises(TypeError, match="retry rules may name classes"):
        Worker("q", Route(in_process, run_in="process", retry=rules), embedded=True)
    with pytest.raises(OptionError, match="retry: when: 5 cannot be called"):
        RetryRules(when=5)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"retry: .* give a bunqueue.RetryRules"):
        Worker("q", in_process, retry=5, embedded=True)  # type: ignore[arg-type]


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (Busy(1.5), 1500, 1500),
        (Busy(timedelta(minutes=1)), 60_000, 60_000),
        (Busy("120"), 120_000, 120_000),
        (Busy(NOW + timedelta(hours=1)), 2_000_000, 3_600_000),
        (Busy(format_datetime(NOW + timedelta(hours=1), usegmt=True)), 2_000_000, 3_600_000),
        (Busy(-5), 0, 0),
        (Busy(10**9), 86_400_000, 86_400_000),
        (Busy("soon"), None, None),
        (Busy(None), None, None),
        (ValueError(), None, None),
    ],
)
def test_delays_that_exceptions_name(error: Any, least: float | None, most: float | None) -> None:
    found = retry_after(None, error)  # type: ignore[arg-type]
    assert found is None if least is None or most is None else least <= (found or 0) <= most


@pytest.mark.parametrize("place", ["response", "error"])
def test_the_header_of_an_answer(place: str) -> None:
    error: Any = ValueError("503")
    answer = SimpleNamespace(headers={"Retry-After": "3"})
    if place == "response":
        error.response = answer
    else:
        error.headers = answer.headers
    assert retry_after(None, error) == 3000  # type: ignore[arg-type]


def test_rules_in_the_test_kit() -> None:
    app = Bunqueue("kit")

    @app.job(never_on=[Declined], retry_delay=retry_after, max_attempts=3)
    def pay(declined: bool) -> None:
        raise Stolen if declined else Busy(30)

    with Sandbox() as sandbox:
        pay.add(True)
        assert [run.outcome for run in sandbox.drain(app, within=timedelta(hours=1))] == ["failed"]
        pay.add(False)
        begun = sandbox.now
        runs = sandbox.drain(app, within=timedelta(hours=1))
        assert [run.at - begun for run in runs] == [timedelta(seconds=30 * place) for place in range(3)]
        queue = Queue("kit")
        assert queue.dlq_entries()[1].attempts[0].delay == 30_000
