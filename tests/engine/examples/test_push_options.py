"""Options of pushes and pulls that few use: a time of their own, names, detached jobs."""

from __future__ import annotations

import msgpack
import pytest
from engine.shard_driver import START, Driver


def test_a_timestamp_stands_for_the_time_of_the_push(driver: Driver) -> None:
    old = driver.ask(cmd="PUSH", queue="q", timestamp=START - 1000, delay=100)["id"]
    driver.ask(cmd="PUSH", queue="q", timestamp=START + 50)
    job = driver.ask(cmd="PULL", queue="q")["job"]
    assert (job["id"], job["createdAt"], job["runAt"]) == (old, START - 1000, START - 900)
    assert driver.ask(cmd="PULL", queue="q")["job"] is None
    driver.tick(START + 50)
    assert driver.ask(cmd="PULL", queue="q")["job"]["runAt"] == START + 50
    assert "at least 0" in driver.ask(cmd="PUSH", queue="q", timestamp=-1)["error"]


@pytest.mark.parametrize("name", ["", "n" * 257, 5])
def test_the_name_of_a_job_is_bounded(driver: Driver, name: object) -> None:
    error = "Job name must be a non-empty string of at most 256 characters"
    assert driver.ask(cmd="PUSH", queue="q", name=name)["error"] == error
    batch = driver.ask(cmd="PUSHB", queue="q", jobs=[{}, {"name": name, "lifo": True}])
    assert batch["error"] == f"jobs[1]: {error}"


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("owner", [None, "w"])
def test_a_detached_job_outlives_its_connection_and_a_restart(
    driver: Driver, owner: str | None, parked: bool
) -> None:
    pull = {"cmd": "PULL", "queue": "q", "detach": True, "timeout": 1000, "owner": owner or ""}
    if parked:
        driver.execute(2, msgpack.packb(pull))
        job_id = driver.ask(cmd="PUSH", queue="q")["id"]
    else:
        job_id = driver.ask(cmd="PUSH", queue="q")["id"]
        driver.execute(2, msgpack.packb(pull))
    driver.commit()
    driver.disconnect(2)
    driver.commit()
    assert driver.ask(cmd="GetState", id=job_id)["state"] == "active"
    driver.close()
    again = Driver(driver.path, now=driver.now)
    assert again.ask(cmd="GetState", id=job_id)["state"] == "active"
    if owner is None:
        assert again.ask(cmd="ACK", id=job_id)["ok"]
    again.close()


def test_headers_travel_with_the_job(driver: Driver) -> None:
    headers = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tenant": "acme"}
    job_id = driver.ask(cmd="PUSH", queue="q", headers=headers)["id"]
    batch = driver.ask(cmd="PUSHB", queue="q", jobs=[{"headers": headers}, {"headers": {}}, {}])
    driver.close()
    again = Driver(driver.path, now=driver.now)
    assert again.ask(cmd="GetJob", id=job_id)["job"]["headers"] == headers
    pulled = [again.ask(cmd="PULL", queue="q")["job"] for _ in range(4)]
    assert [job["id"] for job in pulled] == [job_id, *batch["ids"]]
    assert [job.get("headers") for job in pulled] == [headers, headers, None, None]
    again.ask(cmd="ACK", id=job_id)
    assert again.ask(cmd="GetJob", id=job_id)["job"]["headers"] == headers
    again.close()


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ("text", "headers must be a map with texts as names"),
        ({1: "a"}, "headers must be a map with texts as names"),
        ({"": "a"}, "a name in headers must be a non-empty string"),
        ({"n" * 65: "a"}, "a name in headers must be at most 64 characters"),
        ({"a": 1}, "headers.a must be a string"),
        ({"a": "x" * 1025}, "headers.a must be at most 1024 characters"),
        ({str(number): "" for number in range(17)}, "headers must have at most 16 entries"),
    ],
)
def test_headers_are_bounded(driver: Driver, headers: object, text: str) -> None:
    assert driver.ask(cmd="PUSH", queue="q", headers=headers)["error"] == text
    batch = driver.ask(cmd="PUSHB", queue="q", jobs=[{}, {"headers": headers}])
    assert batch["error"].endswith(text)
    assert driver.ask(cmd="Count", queue="q")["count"] == 0


def test_jobs_of_a_batch_may_depend_on_those_before_them(driver: Driver) -> None:
    chain = [{"jobId": "a"}, {"jobId": "b", "dependsOn": ["a"]}, {"jobId": "c", "dependsOn": ["a", "b"]}]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=chain)["ids"] == ["a", "b", "c"]
    for job_id in ("a", "b", "c"):
        assert driver.ask(cmd="PULLB", queue="q", count=5)["jobs"][0]["id"] == job_id
        assert driver.ask(cmd="ACK", id=job_id)["ok"]


@pytest.mark.parametrize(
    ("jobs", "missing"),
    [
        ([{"dependsOn": ["b"]}, {"jobId": "c"}], "b"),
        ([{"jobId": "a", "dependsOn": ["a"]}], "a"),
        ([{}, {"jobId": "b", "dependsOn": [""]}], ""),
    ],
    ids=["of another name", "itself", "of no name"],
)
def test_what_a_batch_cannot_wait_for_is_refused(
    driver: Driver, jobs: list[dict[str, object]], missing: str
) -> None:
    place = next(index for index, job in enumerate(jobs) if "dependsOn" in job)
    error = f"jobs[{place}]: Dependency job not found: {missing}"
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs) == {"ok": False, "error": error}
    assert driver.ask(cmd="Count", queue="q")["count"] == 0


def run_order(driver: Driver) -> list[str]:
    order = []
    while pulled := driver.ask(cmd="PULLB", queue="q", count=9)["jobs"]:
        order += [job["id"] for job in pulled]
        for job in pulled:
            driver.ask(cmd="ACK", id=job["id"])
    return order


def test_jobs_of_a_batch_may_depend_on_each_other_in_any_order(driver: Driver) -> None:
    jobs = [
        {"jobId": "d", "dependsOn": ["c", "a"]},
        {"jobId": "b", "dependsOn": ["a"]},
        {"jobId": "a"},
        {"jobId": "c", "dependsOn": ["b", "a"]},
    ]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ids"] == ["d", "b", "a", "c"]
    assert run_order(driver) == ["a", "b", "c", "d"]


def test_jobs_of_a_batch_may_depend_on_one_that_is_there_already(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", jobId="a", removeOnComplete=False)
    again = [{"jobId": "b", "dependsOn": ["a"]}, {"jobId": "a"}]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=again)["ids"] == ["b", "a"]
    assert run_order(driver) == ["a", "b"]
    again = [{"jobId": "c", "dependsOn": ["a"]}, {"jobId": "a"}]
    driver.ask(cmd="PUSHB", queue="q", jobs=again)
    assert run_order(driver)[0] == "c"  # as it is done


def test_a_job_that_depends_on_a_duplicate_depends_on_the_one_that_has_its_key(driver: Driver) -> None:
    driver.ask(cmd="PUSH", queue="q", jobId="first", uniqueKey="k")
    jobs = [
        {"jobId": "b", "dependsOn": ["a"]},
        {"jobId": "a", "uniqueKey": "k"},
        {"jobId": "e", "dependsOn": ["d"]},
        {"jobId": "c", "uniqueKey": "of two"},
        {"jobId": "d", "uniqueKey": "of two"},
    ]
    assert driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ids"] == ["b", "first", "e", "c", "c"]
    assert run_order(driver) == ["first", "c", "b", "e"]


@pytest.mark.parametrize(
    ("links", "circle"),
    [
        ({"a": "b", "b": "a"}, "jobs[0]: dependsOn leads in a circle, {}: a -> b -> a"),
        (
            {"x": "", "a": "b", "b": "c", "c": "a"},
            "jobs[1]: dependsOn leads in a circle, {}: a -> b -> c -> a",
        ),
    ],
    ids=["of two", "of three"],
)
def test_jobs_that_would_wait_for_each_other_for_ever_are_refused(
    driver: Driver, links: dict[str, str], circle: str
) -> None:
    jobs = [{"jobId": name, "dependsOn": [dep] if dep else []} for name, dep in links.items()]
    refused = driver.ask(cmd="PUSHB", queue="q", jobs=jobs)
    assert refused["error"] == circle.format("each job would wait for the next")
    assert driver.ask(cmd="Count", queue="q")["count"] == 0


@pytest.mark.parametrize("field", ["dependsOn", "childrenIds"])
def test_ids_that_stay_with_a_job_are_bounded(driver: Driver, field: str) -> None:
    """A job must be deliverable."""
    refused = driver.ask(cmd="PUSH", queue="q", **{field: ["a", "x" * 1025]})
    assert refused["error"] == f"{field}[1] must be at most 1024 characters"


def test_the_id_of_a_job_of_a_flow_is_bounded(driver: Driver) -> None:
    jobs = [{"id": "x" * 1025, "queue": "q", "input": {"data": {}}}]
    assert driver.ask(cmd="PUSHF", jobs=jobs)["error"] == "jobs[0]: id must be at most 1024 characters"
