"""FindJobs, by example: what is found, in which order, page by page, and how much is looked at for it."""

from __future__ import annotations

from typing import Any

import pytest
from engine.shard_driver import START, Driver

BLOCK = 1024


def find(driver: Driver, **wanted: Any) -> dict[str, Any]:
    found = driver.ask(cmd="FindJobs", **wanted)
    assert found["ok"], found
    return found


def ids(driver: Driver, **wanted: Any) -> list[str]:
    return [job["id"] for job in find(driver, **wanted)["jobs"]]


def work(driver: Driver, queue: str = "q", owner: str = "w", error: str | None = None) -> str:
    """Have one job done, or fail; its id."""
    taken = driver.ask(cmd="PULL", queue=queue, owner=owner)
    job_id, token = taken["job"]["id"], taken["token"]
    if error is None:
        driver.ask(cmd="ACK", id=job_id, token=token, result={"done": True})
    else:
        driver.ask(cmd="FAIL", id=job_id, token=token, error=error)
    return str(job_id)


def fill(driver: Driver, count: int, queue: str = "q", **fields: Any) -> list[str]:
    """Push jobs in large batches; their ids."""
    found: list[str] = []
    for start in range(0, count, BLOCK):
        jobs = [{"data": n, **fields} for n in range(start, min(start + BLOCK, count))]
        found += driver.ask(cmd="PUSHB", queue=queue, jobs=jobs)["ids"]
    return found


def finish(driver: Driver, count: int, queue: str = "q") -> None:
    for start in range(0, count, 1000):
        taken = driver.ask(cmd="PULLB", queue=queue, count=min(1000, count - start), owner="w")
        driver.ask(cmd="ACKB", ids=[job["id"] for job in taken["jobs"]], tokens=taken["tokens"])


def test_jobs_are_found_in_every_state(driver: Driver) -> None:
    done = driver.push(priority=9)
    assert work(driver) == done
    dead = driver.push(priority=8, maxAttempts=1)
    assert work(driver, error="Boom: no such mailbox") == dead
    stopped = driver.push(priority=7)
    driver.ask(cmd="PULL", queue="q", owner="w2")
    driver.ask(cmd="Cancel", id=stopped, running=True, grace=0)
    driver.tick(START + 1)
    active = driver.push(priority=6)
    driver.ask(cmd="PULL", queue="q", owner="w2")
    urgent, plain = driver.push(priority=5), driver.push()
    delayed = driver.push(delay=60_000)
    blocked = driver.push(dependsOn=[plain])
    states = {
        "completed": [done],
        "failed": [dead],
        "cancelled": [stopped],
        "active": [active],
        "waiting": [plain, urgent],
        "prioritized": [urgent],
        "paused": [],
        "delayed": [delayed],
        "waiting-children": [blocked],
    }
    for state, wanted in states.items():
        assert ids(driver, state=state) == wanted, state
        assert ids(driver, state=state, queue="q") == wanted, state
        assert ids(driver, where=f"state = {state}") == wanted, state
    everything = [blocked, delayed, plain, urgent, active, stopped, dead, done]
    assert ids(driver) == everything
    assert ids(driver, asc=True) == everything[::-1]
    assert ids(driver, state=["failed", "active"]) == [active, dead]
    assert ids(driver, where="state != waiting and state != completed") == [
        blocked, delayed, active, stopped, dead,
    ]  # fmt: skip
    driver.ask(cmd="Pause", queue="q")
    assert ids(driver, state="paused") == [plain, urgent]


def test_jobs_are_found_by_what_they_are(driver: Driver) -> None:
    one = driver.push(name="welcome", tags=["vip", "eu"], groupId="acme", data={"order": {"id": 7}})
    two = driver.push(name="welcome", tags=["eu"], groupId="acme", data={"order": {"id": "7"}}, priority=3)
    three = driver.push(queue="other", name="goodbye", data={"order": {"id": 7, "total": 12.5}})
    for _ in range(2):  # as live jobs, and as finished ones
        assert ids(driver, name="welcome") == [two, one]
        assert ids(driver, name=["welcome", "goodbye"]) == [three, two, one]
        assert ids(driver, where="name ~ GOOD") == [three]
        assert ids(driver, tag="vip") == [one]
        assert ids(driver, tag=["eu", "vip"]) == [one]
        assert ids(driver, where="tag = eu and tag != vip") == [two]
        assert ids(driver, where="tag in (vip, eu)") == [two, one]
        assert ids(driver, group="acme") == [two, one]
        assert ids(driver, where="group != acme") == [three]
        assert ids(driver, where="group ~ CM") == [two, one]
        assert ids(driver, data={"order.id": 7}) == [three, one]
        assert ids(driver, where='data.order.id = "7"') == [two]
        assert ids(driver, where="data.order.total > 12") == [three]
        assert ids(driver, where="data.order.total != 12.5") == [two, one]
        assert ids(driver, where="priority >= 1") == [two]
        assert ids(driver, where="queue = other") == [three]
        assert ids(driver, where="queue != other", name="welcome") == [two, one]
        assert ids(driver, queue="other", name="welcome") == []
        assert ids(driver, queue="nowhere") == []
        if driver.state(one) == "waiting":
            for queue in ("q", "q", "other"):
                work(driver, queue)


def test_workflows_are_found_among_jobs(driver: Driver) -> None:
    flow = driver.push(name="order", workflow=True)
    plain = driver.push(name="order")
    steps = driver.push(name="import")
    for _ in range(2):  # live, and finished
        found = [flow] if driver.state(flow) == "waiting" else [steps, flow]
        assert ids(driver, where="workflow = true") == found
        assert ids(driver, where="workflow = true and name != order") == found[:-1]
        assert plain in ids(driver, where="workflow != true")
        if driver.state(flow) == "waiting":
            work(driver)
            work(driver)
            token = driver.ask(cmd="PULL", queue="q", owner="w")["token"]
            driver.ask(cmd="RecordSteps", queue="q", steps=[{"id": steps, "token": token, "name": "rows"}])
            assert ids(driver, where="workflow = true", state="active") == [steps]
            driver.ask(cmd="ACK", id=steps, token=token)


def test_jobs_are_found_by_worker_error_and_attempts(driver: Driver) -> None:
    dead = driver.push(maxAttempts=1)
    work(driver, owner="left", error="Boom: no such mailbox")
    tried = driver.push(maxAttempts=3, backoff=60_000)
    work(driver, owner="right", error="boom, too")
    done = driver.push()
    work(driver, owner="right")
    active = driver.push()
    driver.ask(cmd="PULL", queue="q", owner="right")
    assert ids(driver, worker="right") == [active, done]
    assert ids(driver, where="worker ~ LEFT") == [dead]
    assert ids(driver, where="worker != right") == [tried, dead]
    assert ids(driver, error="BOOM") == [tried, dead]
    assert ids(driver, error="no such mailbox", state="failed") == [dead]
    assert ids(driver, where="attempts > 0") == [tried, dead]
    assert driver.state(tried) == "delayed"


def test_jobs_are_found_by_time(driver: Driver) -> None:
    made = []
    for minute in range(5):
        driver.tick(START + minute * 60_000)
        made.append(driver.push(queue="times"))
    driver.tick(START + 600_000)
    for _ in range(3):
        work(driver, "times")
        driver.tick(driver.now + 1000)
    first, second = START + 60_000, START + 120_000
    assert ids(driver, createdAfter=second) == made[:1:-1]
    assert ids(driver, createdBefore=first) == made[:1]
    assert ids(driver, createdAfter=first, createdBefore=second) == made[1:2]
    assert ids(driver, where="created > 10m ago and created <= 8m ago") == [made[2], made[1]][:2]
    assert ids(driver, finishedAfter=START + 601_000) == [made[2], made[1]]
    assert ids(driver, finishedAfter=START + 601_000, finishedBefore=START + 602_000) == [made[1]]
    assert ids(driver, finishedBefore=START) == []


def test_pages_follow_each_other_whatever_happens_between_them(driver: Driver) -> None:
    made = [driver.push() for _ in range(20)]
    page = find(driver, limit=6)
    found = [job["id"] for job in page["jobs"]]
    later = driver.push()
    driver.ask(cmd="RemoveJob", id=made[3])
    for _ in range(5):
        work(driver)  # the oldest ones become completed jobs
    while page["cursor"]:
        page = find(driver, limit=6, cursor=page["cursor"])
        found += [job["id"] for job in page["jobs"]]
    assert found == [job_id for job_id in made[::-1] if job_id != made[3]]
    assert later not in found


def test_counting_and_explaining(driver: Driver) -> None:
    fill(driver, 50, name="a")
    fill(driver, 30, name="b")
    counted = find(driver, limit=0, name="b")
    assert (counted["jobs"], counted["cursor"], counted["progress"]["found"]) == ([], None, 30)
    explained = find(driver, explain=True, state="delayed")
    assert explained["plan"] == {"by": ["state"], "jobs": 0}
    assert explained["progress"]["scanned"] == 0
    assert find(driver, explain=True)["plan"]["jobs"] == 80
    for _ in range(3):
        work(driver)
    assert find(driver, explain=True, queue="q", state="completed")["plan"] == {"by": ["queue"], "jobs": 3}


def test_a_search_stops_after_so_many_jobs_and_goes_on(driver: Driver) -> None:
    made = fill(driver, 3000)
    finish(driver, 3000)
    rounds, page = 1, find(driver, scan=1200, where="data = 3")
    while page["cursor"] is not None:
        assert page["jobs"] == []
        assert 1000 <= page["progress"]["scanned"] <= 2200
        page = find(driver, scan=1200, where="data = 3", cursor=page["cursor"])
        rounds += 1
    assert [job["id"] for job in page["jobs"]] == [made[3]]
    assert rounds == 2


@pytest.mark.parametrize("when", ["at once", "after a restart", "without the tables"])
def test_rare_names_tags_groups_and_times_are_found_in_a_few_blocks(driver: Driver, when: str) -> None:
    """Of four blocks two are looked at: theirs, and the last one, which is not whole."""
    fill(driver, 2000, name="usual")
    rare = [driver.push(name="rare", tags=["odd"], groupId="few")]
    fill(driver, 2000, name="usual", tags=["common"])
    finish(driver, 3000)
    driver.tick(START + 3_600_000)
    if when != "at once":
        if when == "without the tables":
            driver.tamper("delete from search_blocks")
            driver.tamper("delete from search_finishes")
        driver.restart()
        while driver.shard.store.prepare_searches(driver.now):
            driver.commit()
        driver.commit()
    for wanted in (
        {"name": "rare"}, {"tag": "odd"}, {"group": "few"}, {"where": "name = rare and tag = odd"},
    ):  # fmt: skip
        found = find(driver, **wanted)
        assert [job["id"] for job in found["jobs"]] == rare
        assert found["progress"]["scanned"] <= 2 * BLOCK, wanted
        assert found["plan"]["jobs"] <= 2 * BLOCK
        assert found["plan"]["by"]
    assert find(driver, name="absent")["progress"]["scanned"] <= BLOCK
    finish(driver, 10)
    late = find(driver, finishedAfter=START + 3_600_000, limit=0)
    assert late["progress"]["found"] == 10
    assert late["progress"]["scanned"] <= 2 * BLOCK
    early = find(driver, createdAfter=START + 1, limit=0)
    assert early["progress"] == {"scanned": early["progress"]["scanned"], "found": 0, "unreadable": 0}
    assert early["progress"]["scanned"] <= BLOCK


def test_a_job_with_a_timestamp_of_its_own_is_found_by_it(driver: Driver) -> None:
    fill(driver, 1500)
    old = driver.push(timestamp=START - 86_400_000)
    fill(driver, 1500)
    assert ids(driver, createdBefore=START) == [old]
    assert find(driver, createdBefore=START, limit=0)["progress"]["scanned"] <= 2 * BLOCK


def test_blocks_without_jobs_are_forgotten(driver: Driver) -> None:
    fill(driver, 3 * BLOCK)
    finish(driver, 3 * BLOCK)
    kept = driver.push()
    assert driver.rows("select count(*) from search_blocks") == [(3,)]
    driver.ask(cmd="Clean", queue="q", state="completed", limit=1_000_000)
    for second in range(5):
        driver.shard.store.prepare_searches(START + 2000 * second)
    driver.commit()
    assert driver.rows("select block from search_blocks") == []
    assert driver.rows("select block from search_finishes") == [(3,)]
    assert ids(driver) == [kept]


def test_many_words_in_a_block_only_make_searches_slower(driver: Driver) -> None:
    jobs = [{"data": n, "tags": [f"{n}-{tag}" for tag in range(20)]} for n in range(BLOCK)]
    made = driver.ask(cmd="PUSHB", queue="q", jobs=jobs)["ids"]
    fill(driver, BLOCK)
    assert driver.rows("select block from search_blocks where words is null") == [(0,)]
    assert ids(driver, tag="7-7") == [made[7]]


@pytest.mark.parametrize(
    ("wanted", "error"),
    [
        ({"state": "odd"}, "state 'odd' is unknown; there are waiting, prioritized, paused"),
        ({"queue": "no name"}, "Queue name"),
        ({"limit": 1001}, "limit must be at most 1000"),
        ({"limit": -1}, "limit must be at least 0"),
        ({"scan": 0}, "scan must be at least 1"),
        ({"cursor": "x"}, "cursor was not given by a search"),
        ({"colour": "red"}, "colour is unknown; there are queue, state, name"),
        ({"where": "colour = red"}, "where: colour is no field"),
        ({"data": {"a": [1]}}, "data.a must be a text, a number"),
        ({"data": {"a..b": 1}}, "where: a..b is no path"),
        ({"createdAfter": -1}, "createdAfter must be at least 0"),
        ({"tag": []}, "tag must have at least 1 entry"),
    ],
)
def test_what_cannot_be_meant_is_refused(driver: Driver, wanted: dict[str, Any], error: str) -> None:
    reply = driver.ask(cmd="FindJobs", **wanted)
    assert not reply["ok"]
    assert error in reply["error"]


def test_large_jobs_come_on_several_pages(driver: Driver) -> None:
    made = [driver.push(data="x" * 3_000_000) for _ in range(6)]
    page = find(driver)
    assert 0 < len(page["jobs"]) < 6
    found = page["jobs"]
    while page["cursor"]:
        page = find(driver, cursor=page["cursor"])
        found += page["jobs"]
    assert [job["id"] for job in found] == made[::-1]
    small = find(driver, dataLimit=100)["jobs"]
    assert [job["dataBytes"] for job in small] == [3_000_005] * 6
