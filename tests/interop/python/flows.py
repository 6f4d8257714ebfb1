"""Parents and children, chains, schedules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support import job_name, new_flows, new_queue, reaches, unique, until, work

from bunqueue import CommandError, UnrecoverableError, Worker


class Bench:
    """Two queues, and workers which tell what children left to their parent."""

    def __init__(self) -> None:
        self.a, self.b = new_queue(unique("a")), new_queue(unique("b"))
        self.order: list[str] = []
        self.flows = new_flows()
        self.workers: list[Worker] = []

    def start(self) -> None:
        def handle(job: Any) -> Any:
            name = job_name(job)
            self.order.append(name)
            if name == "bad":
                raise UnrecoverableError("no good")
            if name != "parent":
                return {"from": name}
            return {
                "values": job.get_children_values(),
                "failed": self.a.get_failed_children_values(job.id),
                "ignored": self.a.get_ignored_children_failures(job.id),
            }

        for queue in (self.a, self.b):
            self.workers.append(work(queue.name, handle))

    def node(self, name: str, queue: Any, *children: Any, **options: Any) -> dict[str, Any]:
        return {"name": name, "queueName": queue.name, "data": {}, "opts": options, "children": children}


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    for worker in bench.workers:
        worker.close()


def test_a_tree(bench: Bench) -> None:
    tree = bench.node(
        "parent", bench.a, bench.node("one", bench.b), bench.node("two", bench.a, bench.node("leaf", bench.b))
    )
    parent = bench.flows.add(tree)
    assert bench.a.get_state(parent.job.id) == "waiting-children"
    known = bench.flows.get_flow(parent.job.id)
    assert [job_name(child.job) for child in known.children] == ["one", "two"]
    bench.start()
    result = bench.a.wait_for_job(parent.job.id, 10_000)
    one, two = (child.job.id for child in parent.children)
    values = {f"{bench.b.name}:{one}": {"from": "one"}, f"{bench.a.name}:{two}": {"from": "two"}}
    assert result == {"values": values, "failed": {}, "ignored": {}}
    assert (bench.order[-1], bench.b.get_job(one).parent_id) == ("parent", parent.job.id)
    assert bench.order.index("leaf") < bench.order.index("two")


def test_children_that_are_quicker_than_the_client(bench: Bench) -> None:
    """The client names the parent after it has pushed both, and the workers do not wait for that."""
    bench.start()
    for number in range(40):
        parent = bench.flows.add(
            bench.node("parent", bench.a, bench.node("one", bench.b), bench.node("two", bench.a))
        )
        result = bench.a.wait_for_job(parent.job.id, 10_000)
        assert len(result["values"]) == 2, number


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        ("fail_parent_on_failure", "failed"),
        ("remove_dependency_on_failure", "completed"),
        ("ignore_dependency_on_failure", "completed"),
        ("continue_parent_on_failure", "completed"),
    ],
)
def test_children_that_fail(bench: Bench, policy: str, state: str) -> None:
    bench.start()
    for _ in range(5):
        bad = bench.node("bad", bench.b, **{policy: True})
        parent = bench.flows.add(bench.node("parent", bench.a, bad, bench.node("good", bench.b)))
        reaches(bench.a, parent.job.id, "completed", "failed")
        assert bench.a.get_state(parent.job.id) == state
        failure = {f"{bench.b.name}:{parent.children[0].job.id}": "no good"}
        result = bench.a.get_result(parent.job.id)
        if policy == "ignore_dependency_on_failure":
            assert result["ignored"] == failure
        if policy == "continue_parent_on_failure":
            assert result["failed"] == failure


def test_chains_and_many_into_one(bench: Bench) -> None:
    bench.start()
    chain = bench.flows.add_chain(
        [bench.node("s1", bench.a), bench.node("s2", bench.b), bench.node("s3", bench.a)]
    )
    reaches(bench.a, chain[-1], "completed")
    assert bench.order == ["s1", "s2", "s3"]
    both = [bench.node("left", bench.a), bench.node("right", bench.b)]
    made = bench.flows.add_bulk_then(both, bench.node("parent", bench.b))
    reaches(bench.b, made["final_id"], "completed")
    values = list(bench.b.get_result(made["final_id"])["values"].values())
    assert values == [{"from": "left"}, {"from": "right"}]
    assert len(bench.flows.add_bulk([bench.node("x", bench.a), bench.node("y", bench.b)])) == 2


def test_a_flow_that_is_refused_leaves_nothing(bench: Bench) -> None:
    wrong = bench.node("wrong", bench.b, priority=10**9)
    with pytest.raises(CommandError, match="priority"):
        bench.flows.add(bench.node("parent", bench.a, bench.node("one", bench.b), wrong))
    assert (bench.a.count(), bench.b.count()) == (0, 0)
    assert bench.flows.get_flow("none") is None


def test_set_list_remove() -> None:
    queue, name = new_queue(), unique("daily")
    repeat = {"pattern": "0 3 * * *", "tz": "Europe/Rome", "limit": 5}
    queue.upsert_job_scheduler(name, repeat, {"name": "night", "opts": {"priority": 2}})
    cron = queue.get_job_scheduler(name)
    told = (cron["schedule"], cron["timezone"], cron["maxLimit"], cron["jobName"], cron["priority"])
    assert told == ("0 3 * * *", "Europe/Rome", 5, "night", 2)
    queue.every(unique("hourly"), 3_600_000)
    assert queue.get_job_schedulers_count() == 2
    queue.remove_job_scheduler(name)
    assert queue.get_job_scheduler(name) is None
    with pytest.raises(CommandError):
        queue.add_cron(unique("wrong"), "nonsense")


def test_its_jobs_carry_the_name_of_the_template() -> None:
    queue = new_queue()
    ran: list[Any] = []
    template = {"name": "tick", "data": {"k": 1}, "opts": {"attempts": 4}}
    queue.upsert_job_scheduler(unique("fast"), {"every": 200, "limit": 2, "immediately": True}, template)
    with work(queue.name, lambda job: ran.append((job_name(job), job.data, job.max_attempts))):
        until("two runs", lambda: len(ran) == 2)
    assert ran == [("tick", {"k": 1}, 4)] * 2


def test_a_job_that_repeats_itself() -> None:
    queue = new_queue()
    ran: list[Any] = []
    with work(queue.name, lambda job: ran.append(job.data)):
        job = queue.add("r", {"v": 1}, repeat={"every": 200, "limit": 2})
        reaches(queue, job.id, "completed")
        job.update_data({"v": 2})
        until("three runs", lambda: len(ran) == 3)
    assert ran == [{"v": 1}, {"v": 2}, {"v": 2}]
