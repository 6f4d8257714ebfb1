"""Flows with names, batches and codecs in a sandbox."""

from __future__ import annotations

from datetime import timedelta

import pytest

from bunqueue import (
    ActiveJob,
    Bunqueue,
    Codec,
    CommandFailed,
    Encryption,
    FlowJob,
    FlowProducer,
    KeyMissing,
    NotEncrypted,
    Queue,
    Worker,
    new_key,
)
from bunqueue.testing import Sandbox

flows = FlowProducer(host="queues.example.com")


def codec(name: str = "k1") -> Codec:
    return Codec(encryption=Encryption({name: new_key()}, hash_key=new_key()))


def work(job: ActiveJob) -> int:
    if job.data.get("fails"):
        raise OSError("it is down")
    return 1 + sum(flows.results().values())


def part(*after: str, **options: object) -> FlowJob[int]:
    return FlowJob("part", {}, queue="parts", max_attempts=1, **options).after(*after)  # type: ignore[arg-type]


def test_a_diamond_runs_in_order_and_as_time_passes(bunqueue: Sandbox) -> None:
    graph = flows.add_graph(
        {"a": part(delay=60_000), "b": part("a"), "c": part("a", delay=3_600_000), "d": part("b", "c")}
    )
    assert bunqueue.drain(work) == []
    bunqueue.assert_added("parts", "part", count=4)
    runs = bunqueue.drain(work, within=timedelta(hours=2))
    assert [(run.id.partition(":")[2], run.result) for run in runs] == [
        ("a", 1),
        ("b", 2),
        ("c", 2),
        ("d", 5),
    ]
    assert graph.info().state == "completed"


@pytest.mark.parametrize(
    ("policy", "state", "ran"),
    [("fail", "failed", ["a"]), ("ignore", "completed", ["a", "b"]), ("wait", "waiting-children", ["a"])],
)
def test_policies_and_a_retry_of_the_flow(bunqueue: Sandbox, policy: str, state: str, ran: list[str]) -> None:
    graph = flows.add_graph(
        {
            "a": FlowJob("part", {"fails": True}, queue="parts", max_attempts=1),
            "b": part("a", on_dead_dependency=policy),
        }
    )
    assert [run.id.partition(":")[2] for run in bunqueue.drain(work)] == ran
    assert graph.info()["b"].state == state
    assert graph.retry() == (["a", "b"] if policy == "fail" else ["a"])
    again = bunqueue.drain({"parts": lambda job: 7})
    assert {run.id.partition(":")[2] for run in again} == ({"a"} if policy == "ignore" else {"a", "b"})
    assert graph.info().state == "completed"
    assert graph.cancel() == 0


def test_a_batch_is_open_until_it_is_closed(bunqueue: Sandbox) -> None:
    ends = {"on_complete": FlowJob("all", queue="parts"), "on_success": FlowJob("good", queue="parts")}
    batch = flows.add_batch(**ends, flow_id="newsletter")
    batch.add_all([part(), part()])
    assert len(bunqueue.drain(work, within=timedelta(days=1))) == 2
    info = batch.info().batch
    assert info is not None
    assert (info.open, info.completed, info.waiting) == (True, 2, ["on-complete", "on-success"])
    flows.batch("newsletter").add({"late": FlowJob("part", {"fails": True}, queue="parts", max_attempts=1)})
    assert batch.close() == 3
    with pytest.raises(CommandFailed, match="was closed"):
        batch.add_all([part()])
    assert [(run.name, run.outcome) for run in bunqueue.drain(work)] == [
        ("part", "failed"),
        ("all", "completed"),
    ]
    assert sorted(batch.retry()) == ["late", "on-success"]
    assert [run.name for run in bunqueue.drain({"parts": lambda job: 1})] == ["part", "good"]
    assert [line.id for line in flows.list_flows().flows] == ["newsletter"]


def test_payloads_go_through_the_codec_of_the_app(bunqueue: Sandbox) -> None:
    app = Bunqueue("secrets", codec=codec())

    @app.job()
    def greet(name: str) -> str:
        if name == "bob":
            raise ValueError("bob is unknown")
        return f"hello {name}"

    @app.cron("0 9 * * *")
    def digest() -> str:
        return "digest"

    handle, bad = greet.add("ada"), greet.add("bob")
    bunqueue.assert_added(greet.job("ada"))
    plain = Queue("secrets")
    assert "encrypted with key k1" in plain.handle(handle.id).job().data["$encoded"]
    runs = bunqueue.drain(app, within=timedelta(days=1))
    assert [run.result for run in runs if run.outcome == "completed"] == ["hello ada", "digest"]
    assert handle.result() == "hello ada"
    assert "bob is unknown" in str(bad.job().error)
    assert "bob is unknown" not in str(plain.handle(bad.id).job().error)
    with pytest.raises(KeyMissing):
        plain.handle(handle.id).result()


def test_a_worker_without_the_key_does_not_get_the_data(bunqueue: Sandbox) -> None:
    seen: list[object] = []
    with Queue("secrets", codec=codec("old")) as queue:
        job = queue.add("greet", {"name": "ada"})
        for wrong in (codec("new"), None):
            worker = Worker("secrets", lambda job: seen.append(job.data), codec=wrong)
            (run,) = bunqueue.drain(worker)
            assert run.outcome == "postponed"
            assert "key" in str(run.error)
            with pytest.raises(KeyMissing):
                bunqueue.drain(worker, within=60_000, raising=True)
            bunqueue.advance(60_000)
        assert seen == []
        assert job.job().attempts == 0
        (run,) = bunqueue.drain(lambda job: job.data["name"])  # a bare handler reads what the test can
        assert run.result == job.result() == "ada"


def test_a_worker_with_a_key_does_not_run_what_is_not_encrypted(bunqueue: Sandbox) -> None:
    plain = Queue("secrets").add("greet", {"name": "eve"})
    worker = Worker("secrets", print, codec=codec())
    with pytest.raises(NotEncrypted, match="the data of the job cannot be read: it is not encrypted"):
        bunqueue.drain(worker, raising=True)
    assert (plain.state(), plain.job().attempts) == ("delayed", 0)
