"""Outboxes: jobs of transactions that were committed, each added once, whatever the relay meets."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import pytest
import sqlalchemy
from sqlalchemy.orm import Session
from support.server import Server
from support.waiting import eventually

os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
sys.path.insert(0, str(Path(__file__).parent / "site"))

import django  # needs the settings

django.setup()

from django.core.management import CommandError, call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402

from bunqueue import ArgumentsError, Bunqueue, Codec, Encryption, OptionError, PayloadError, Queue, new_key  # noqa: E402
from bunqueue.integrations import django as integration  # noqa: E402
from bunqueue.integrations import sqlalchemy as sql  # noqa: E402
from bunqueue.integrations.django import outbox as django_outbox  # noqa: E402
from bunqueue.integrations.django.outbox.models import OutboxJob  # noqa: E402
from bunqueue.integrations.outbox import Outbox, Relay  # noqa: E402
from bunqueue.testing import Sandbox  # noqa: E402


class Case(Protocol):
    """One of the two databases."""

    outbox: Outbox

    def add(self, *jobs: tuple[str, Any], fails: bool = False, **options: Any) -> list[str]:
        """In one transaction, which is rolled back if it `fails`."""

    def add_on_commit(self, queue: Queue, name: str, *, fails: bool = False) -> None: ...

    def rows(self) -> list[tuple[str, str | None]]:
        """What is left: names and errors."""

    def make_older(self, span: timedelta) -> None: ...


class Rollback(Exception):
    """Ends a transaction."""


class Django:
    def __init__(self) -> None:
        call_command("migrate", verbosity=0)
        self.outbox = django_outbox.DjangoOutbox()

    def add(self, *jobs: tuple[str, Any], fails: bool = False, **options: Any) -> list[str]:
        try:
            with transaction.atomic():
                ids = [django_outbox.add("emails", name, data, **options) for name, data in jobs]
                if fails:
                    raise Rollback
        except Rollback:
            pass
        return ids

    def add_on_commit(self, queue: Queue, name: str, *, fails: bool = False) -> None:
        try:
            with transaction.atomic():
                django_outbox.add_on_commit(queue, name, {"x": 1})
                assert queue.count() == 0
                if fails:
                    raise Rollback
        except Rollback:
            pass

    def rows(self) -> list[tuple[str, str | None]]:
        return list(OutboxJob.objects.order_by("pk").values_list("name", "error"))

    def make_older(self, span: timedelta) -> None:
        for row in OutboxJob.objects.all():
            OutboxJob.objects.filter(pk=row.pk).update(created_at=row.created_at - span)


class Sql:
    def __init__(self, folder: Path) -> None:
        metadata = sqlalchemy.MetaData()
        self.engine = sqlalchemy.create_engine(f"sqlite:///{folder / 'sql.db'}")
        self.table = sql.SqlOutbox(metadata)
        metadata.create_all(self.engine)
        self.outbox = self.table.on(self.engine)

    def add(self, *jobs: tuple[str, Any], fails: bool = False, **options: Any) -> list[str]:
        with Session(self.engine) as session:
            ids = [self.table.add(session, "emails", name, data, **options) for name, data in jobs]
            session.rollback() if fails else session.commit()
        return ids

    def add_on_commit(self, queue: Queue, name: str, *, fails: bool = False) -> None:
        with Session(self.engine) as session:
            sql.add_on_commit(session, queue, name, {"x": 1})
            assert queue.count() == 0
            session.rollback() if fails else session.commit()
            session.commit()  # nothing is left of it

    def rows(self) -> list[tuple[str, str | None]]:
        table = self.table.table
        with self.engine.connect() as connection:
            return [tuple(row) for row in connection.execute(sqlalchemy.select(table.c.name, table.c.error))]

    def make_older(self, span: timedelta) -> None:
        table = self.table.table
        with self.engine.begin() as connection:
            connection.execute(table.update().values(created_at=table.c.created_at - span.total_seconds()))


@pytest.fixture(params=["django", "sqlalchemy"])
def case(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    if request.param == "sqlalchemy":
        case = Sql(tmp_path)
        yield case
        case.engine.dispose()
    else:
        connection.close()
        monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "site.db"))
        yield Django()
        connection.close()


@pytest.fixture
def queue() -> Queue:
    return Queue("emails")


def test_what_is_committed_is_added_and_what_is_rolled_back_is_not(
    bunqueue: Sandbox, case: Case, queue: Queue
) -> None:
    case.add(("never", 1), fails=True)
    ids = case.add(("welcome", {"to": "ada"}), ("digest", None), delay=timedelta(hours=1), priority=5)
    assert queue.count() == 0
    relay = Relay(case.outbox)
    assert (relay.run_once(), relay.run_once()) == (2, 0)
    job = bunqueue.assert_added("emails", "welcome", {"to": "ada"}, priority=5)
    assert [job.id for job in bunqueue.added("emails")] == ids
    assert job.run_at - job.created_at == timedelta(hours=1)  # from when it was written
    assert case.rows() == []


def test_batches_are_bounded_and_in_order(bunqueue: Sandbox, case: Case) -> None:
    case.add(*[(f"n{number}", None) for number in range(5)])
    relay = Relay(case.outbox, batch=2)
    assert [relay.run_once() for _ in range(4)] == [2, 2, 1, 0]
    assert [job.name for job in bunqueue.added("emails")] == [f"n{number}" for number in range(5)]


def die(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay brings the rows, and dies before it can say so."""

    def dying(*arguments: Any) -> None:
        raise KeyboardInterrupt

    kind = next(each for each in (sql.SqlBatch, django_outbox.table.DjangoBatch) if _makes(outbox, each))
    with monkeypatch.context() as patch:
        patch.setattr(kind, "write", dying)
        with pytest.raises(KeyboardInterrupt):
            Relay(outbox).run_once()


def _makes(outbox: Outbox, kind: type) -> bool:
    return kind.__module__ == type(outbox).__module__


@pytest.mark.parametrize("later", [timedelta(0), timedelta(days=1)])
@pytest.mark.parametrize("done", [False, True])
def test_a_relay_that_died_in_between_adds_nothing_twice(
    bunqueue: Sandbox, case: Case, monkeypatch: pytest.MonkeyPatch, later: timedelta, done: bool
) -> None:
    case.add(("welcome", 1))
    die(case.outbox, monkeypatch)
    if done:
        assert len(bunqueue.drain(lambda job: None)) == 1
    bunqueue.advance(later)  # the server has forgotten the key, but not the job
    case.make_older(later)
    assert Relay(case.outbox).run_once() == 1
    assert case.rows() == []
    bunqueue.assert_added("emails", count=1)
    assert len(bunqueue.drain(lambda job: None)) == (0 if done else 1)


def test_nothing_is_lost_while_the_server_is_away(bunqueue: Sandbox, case: Case) -> None:
    case.add(("a", 1), ("b", 2))
    bunqueue.faults.lose_command("add", nth=2, times=None)
    with pytest.raises(ConnectionError):
        Relay(case.outbox).run_once()
    assert case.rows() == [("b", None)]
    bunqueue.faults.clear()
    assert Relay(case.outbox).run_once() == 1
    assert [job.name for job in bunqueue.added("emails")] == ["a", "b"]


def test_what_the_server_refuses_stays_and_holds_nobody_up(
    bunqueue: Sandbox, case: Case, caplog: pytest.LogCaptureFixture
) -> None:
    case.add(("orphan", 1), depends_on=["nobody"])
    case.add(("fine", 2))
    relay = Relay(case.outbox)
    assert (relay.run_once(), relay.run_once()) == (2, 0)
    assert [job.name for job in bunqueue.added("emails")] == ["fine"]
    ((name, error),) = case.rows()
    assert name == "orphan"
    assert "Dependency job not found: nobody" in str(error)
    assert "a job of the outbox is refused, and stays there" in caplog.text


@pytest.mark.parametrize(
    ("data", "options", "kind"),
    [(1, {"priority": 10**9}, OptionError), (object(), {}, PayloadError), (1, {"colour": 1}, TypeError)],
)
def test_what_cannot_be_added_is_told_in_the_transaction(
    bunqueue: Sandbox, case: Case, data: Any, options: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        case.add(("n", data), **options)
    assert case.rows() == []


async def test_a_relay_is_a_service(bunqueue: Sandbox, case: Case, caplog: pytest.LogCaptureFixture) -> None:
    relay = Relay(case.outbox, pause=1)
    serving = asyncio.create_task(relay.serve())
    await asyncio.to_thread(case.add, ("first", 1))
    await eventually(lambda: len(bunqueue.added("emails")) == 1, "it was brought")
    bunqueue.faults.lose_command("add", times=3)  # as often as a client repeats it
    await asyncio.to_thread(case.add, ("second", 1))
    await eventually(lambda: len(bunqueue.added("emails")) == 2, "it was brought, in the end")
    assert "the outbox waits: PUSH for queue 'emails'" in caplog.text
    relay.stop_soon()
    assert await asyncio.wait_for(serving, 60) is None


def test_adding_right_after_the_commit(bunqueue: Sandbox, case: Case, queue: Queue) -> None:
    case.add_on_commit(queue, "never", fails=True)
    bunqueue.assert_not_added("emails")
    case.add_on_commit(queue, "welcome")
    bunqueue.assert_added("emails", "welcome", {"x": 1}, count=1)


def test_a_savepoint_takes_its_own_jobs_along_only(bunqueue: Sandbox, tmp_path: Path, queue: Queue) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'sql.db'}")
    with Session(engine) as session:
        sql.add_on_commit(session, queue, "outer")
        with session.begin_nested():
            sql.add_on_commit(session, queue, "kept")
        savepoint = session.begin_nested()
        sql.add_on_commit(session, queue, "inner")
        savepoint.rollback()
        bunqueue.assert_not_added("emails")
        session.commit()
    engine.dispose()
    assert [job.name for job in bunqueue.added("emails")] == ["outer", "kept"]


def test_the_command_of_django(
    bunqueue: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queue: Queue
) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "site.db"))
    Django().add(*[("n", number) for number in range(5)])
    call_command("bunqueue_relay", "--once", "--batch", "2")
    assert queue.count() == 5
    for wrong, words in (("shop.nothing", "nothing"), ("json.dumps", "is no bunqueue.Codec")):
        with pytest.raises(CommandError, match=words):
            call_command("bunqueue_relay", "--once", "--codec", wrong)
    call_command("makemigrations", "bunqueue_outbox", "--check", "--dry-run", verbosity=0)
    connection.close()


def test_the_command_of_django_brings_what_only_programs_with_the_codec_read(
    shared_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection.close()
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "site.db"))
    codec = Codec(encryption=Encryption({"k1": new_key()}, hash_key=new_key()))
    monkeypatch.setattr("shop.mails.codec", codec, raising=False)
    (job_id,) = Django().add(("n", 17))
    url = f"bunqueue://{shared_server.host}:{shared_server.port}"
    call_command("bunqueue_relay", "--once", "--url", url, "--codec", "shop.mails.codec")
    with Queue("emails", url=url) as plain, Queue("emails", url=url, codec=codec) as ours:
        assert "encrypted with key k1" in plain.handle(job_id).job().data["$encoded"]
        assert ours.handle(job_id).job().data == 17
    connection.close()


# -- jobs of an app, and tasks of Django ---------------------------------------------------------------------


def test_a_function_of_an_app_with_its_arguments(bunqueue: Sandbox) -> None:
    app = Bunqueue("typed")

    @app.job(max_attempts=7)
    def charge(order: int, amount: float = 1.5, using: str = "card") -> str:
        return f"{order} {amount} {using}"

    call_command("migrate", verbosity=0)
    engine = sqlalchemy.create_engine("sqlite://")
    outbox = sql.SqlOutbox(sqlalchemy.MetaData())
    outbox.table.metadata.create_all(engine)
    with transaction.atomic():
        ids = [django_outbox.add(charge, 17, using="bank"), django_outbox.add(charge.job(18), using=None)]
    with Session(engine) as session, session.begin():
        ids += [outbox.add(session, charge, 19, amount=2.5), outbox.add(session, charge.job(20))]
    for relay in (Relay(django_outbox.DjangoOutbox()), Relay(outbox.on(engine))):
        relay.run_once()
        relay.close()
    with Queue("typed") as queue:
        found = [queue.get_job(each) for each in ids]
        assert [(job.name, job.data, job.max_attempts) for job in found if job is not None] == [
            ("charge", {"order": 17, "using": "bank"}, 7),
            ("charge", {"order": 18}, 7),
            ("charge", {"order": 19, "amount": 2.5}, 7),
            ("charge", {"order": 20}, 7),
        ]
    for wrong in ((charge, "many"), (charge,), (charge.job(1), 2), (print, 1), ("typed",)):
        with pytest.raises((ArgumentsError, TypeError)):
            django_outbox.add(*wrong)  # type: ignore[call-overload]
    assert not OutboxJob.objects.exists()


def test_a_task_of_django_is_enqueued_with_the_transaction(bunqueue: Sandbox) -> None:
    from shop.tasks import add

    call_command("migrate", verbosity=0)
    task = add.using(backend="outbox")

    def rolled_back() -> None:
        with transaction.atomic():
            task.enqueue(1, 2)
            raise Rollback

    with pytest.raises(Rollback):
        rolled_back()
    with transaction.atomic():
        result = task.enqueue(3, 4)
        added = django_outbox.add(add, 5, 6)  # whose backend would send it at once
    with pytest.raises(TypeError, match="missing a required argument: 'two'"):
        django_outbox.add(add, 5)
    backend = task.get_backend()
    waiting = backend.get_result(result.id)
    assert (waiting.status, waiting.args, waiting.id) == ("READY", [3, 4], result.id)
    relay = Relay(django_outbox.DjangoOutbox())
    assert relay.run_once() == 2
    relay.close()
    runs = bunqueue.drain(integration.run_task)
    assert {(run.outcome, run.result) for run in runs} == {("completed", 7), ("completed", 11)}
    assert backend.get_result(result.id).return_value == 7
    assert add.get_backend().get_result(added).return_value == 11
