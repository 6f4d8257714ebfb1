"""What follows from the declaration of an option of jobs: see `bunqueue.model.job_options`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.shard_driver import Driver

from bunqueue import JobOptions, NewJob
from bunqueue.cli.commands.cron import OF_JOBS
from bunqueue.cli.commands.job_options import FLAGS
from bunqueue.client.options.cron import SPAWN_OPTIONS
from bunqueue.client.options.job import wire_fields
from bunqueue.model.job import Extra
from bunqueue.model.job_options import RARE_OPTIONS

VALUES: dict[type, Any] = {float: 60_000.0, int: 7, str: "x", bool: True}
GIVEN = {name: VALUES[option.kind] for name, option in RARE_OPTIONS.items()}
SENT = {option.wire_name: GIVEN[name] for name, option in RARE_OPTIONS.items()}


def options_in(job: dict[str, Any]) -> dict[str, Any]:
    return {name: job.get(name) for name in SENT}


def test_a_job_has_them_whoever_adds_it(driver: Driver) -> None:
    def pushed() -> None:
        driver.ask(cmd="PUSH", queue="q", **SENT)

    def in_a_batch() -> None:
        driver.ask(cmd="PUSHB", queue="q", jobs=[SENT])

    def by_a_schedule() -> None:
        driver.ask(cmd="Cron", name="c", queue="q", repeatEvery=1_000, maxLimit=1, jobOptions=SENT)
        driver.tick(driver.now + 1_500)

    def by_a_failure() -> None:
        dies = driver.ask(cmd="PUSH", queue="q", maxAttempts=1, onDead=SENT)["id"]
        driver.ask(cmd="PULL", queue="q")
        driver.ask(cmd="FAIL", id=dies)

    ways: tuple[Callable[[], None], ...] = (pushed, in_a_batch, by_a_schedule, by_a_failure)
    for way in ways:
        way()
        pulled = driver.ask(cmd="PULL", queue="q")["job"]
        assert options_in(pulled) == SENT, way.__name__
        assert options_in(driver.ask(cmd="GetJob", id=pulled["id"])["job"]) == SENT, way.__name__
        driver.restart()
        assert options_in(driver.ask(cmd="GetJob", id=pulled["id"])["job"]) == SENT, way.__name__
        driver.ask(cmd="Drain", queue="q")
        driver.ask(cmd="Cancel", id=pulled["id"])


def test_a_job_without_them_shows_those_of_the_reference_only(driver: Driver) -> None:
    job_id = driver.ask(cmd="PUSH", queue="q", groupId="g")["id"]
    shown = driver.ask(cmd="GetJob", id=job_id)["job"]
    always = {option.wire_name for name, option in RARE_OPTIONS.items() if name in Extra.ALWAYS_SHOWN}
    assert shown.keys() & SENT.keys() == always == {"stallTimeout", "keepLogs"}


def test_python_and_the_command_line_have_them() -> None:
    assert wire_fields(GIVEN, {}) == GIVEN
    assert wire_fields({"on_dead": NewJob("n", None, **GIVEN)}, {})["on_dead"].keep_logs == 7
    assert GIVEN.keys() <= SPAWN_OPTIONS & set(JobOptions.__annotations__)
    assert GIVEN.keys() <= FLAGS.keys() & set(OF_JOBS)
    for name, option in RARE_OPTIONS.items():
        assert FLAGS[name].about == option.words, name
