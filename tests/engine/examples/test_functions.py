"""Functions that apps declare: options for jobs that leave them out, and checks at the door."""

from __future__ import annotations

import time
from typing import Any

from engine.shard_driver import Driver

from bunqueue.model.functions import MAX_FUNCTIONS, RETIRED_MS

SEND = {
    "type": "object",
    "properties": {"to": {"type": "string"}, "copies": {"type": "integer"}},
    "required": ["to"],
    "additionalProperties": False,
}


def declare(driver: Driver, *functions: dict[str, Any], **more: Any) -> None:
    reply = driver.ask(cmd="DeclareFunctions", queue="q", functions=list(functions), **more)
    assert reply["ok"], reply


def listed(driver: Driver) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = driver.ask(cmd="ListFunctions", queue="q")["functions"]
    return found


def job(driver: Driver, **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = driver.ask(cmd="GetJob", id=driver.push(queue="q", **fields))["job"]
    return found


OPTIONS = {
    "priority": 7,
    "delay": 60_000,
    "maxAttempts": 9,
    "backoff": 5_000,
    "timeout": 2_000,
    "lifo": True,
    "removeOnFail": True,
    "keepCompleted": 99_000,
    "tags": ["mail"],
    "groupId": "g",
    "onDead": {"name": "sorry", "data": {"a": 1}},
}


def test_options_that_are_not_sent_are_those_of_the_function(driver: Driver) -> None:
    declare(driver, {"name": "send", "aliases": ["mail"], "options": OPTIONS})
    for name in ("send", "mail"):
        for sent in ({}, {"tags": None}):  # a push of few fields, and one of all
            found = job(driver, name=name, **sent)
            shown = {name: found[name] for name in OPTIONS.keys() & found.keys() - {"delay", "onDead"}}
            assert shown == {name: OPTIONS[name] for name in shown}
            assert found["runAt"] - found["createdAt"] == 60_000
            assert len(shown) >= 7, shown
    other = job(driver, name="other")
    assert (other["priority"], other["maxAttempts"], other["runAt"]) == (0, 3, other["createdAt"])
    many = driver.ask(cmd="PUSHB", queue="q", jobs=[{"name": "send"}, {"name": "other"}, {"name": "send"}])
    priorities = [driver.ask(cmd="GetJob", id=each)["job"]["priority"] for each in many["ids"]]
    assert priorities == [7, 0, 7]


def test_fields_that_are_sent_win_even_with_the_servers_default(driver: Driver) -> None:
    declare(driver, {"name": "send", "options": OPTIONS})
    sent = {
        "priority": 0,
        "delay": 0,
        "maxAttempts": 3,
        "backoff": 1000,
        "lifo": False,
        "removeOnFail": False,
        "removeOnComplete": True,  # beside which nothing can be kept
        "timeout": 1,
        "tags": ["x"],
        "groupId": "other",
    }
    found = job(driver, name="send", **sent)
    shown = {name: found.get(name) for name in sent}
    assert shown == {**sent, "delay": shown["delay"]}
    assert found["runAt"] == found["createdAt"]
    assert "keepCompleted" not in found
    assert job(driver, name="send", priority=0)["priority"] == 0  # as a push of few fields


def test_schedules_flows_and_jobs_of_dead_ones_get_them_too(driver: Driver) -> None:
    declare(driver, {"name": "send", "options": {"priority": 7}})
    reply = driver.ask(cmd="Cron", name="c", queue="q", repeatEvery=1000, jobName="send", data={})
    assert reply["ok"], reply
    assert (run := driver.ask(cmd="CronTrigger", name="c"))["ok"], run
    assert driver.ask(cmd="PUSH", queue="q", name="x", maxAttempts=1, onDead={"name": "send"})["ok"]
    taken = {each["name"]: each for each in driver.ask(cmd="PULLB", queue="q", count=5)["jobs"]}
    assert taken["send"]["priority"] == 7
    driver.ask(cmd="FAIL", id=taken["x"]["id"], error="no")
    (sorry,) = driver.ask(cmd="PULLB", queue="q", count=5)["jobs"]
    assert (sorry["name"], sorry["priority"]) == ("send", 7)
    nodes = [{"id": "n", "queue": "q", "input": {"name": "send", "data": {}}}]
    assert (flow := driver.ask(cmd="PUSHF", jobs=nodes))["ok"], flow
    (node,) = driver.ask(cmd="PULLB", queue="q", count=5)["jobs"]
    assert node["priority"] == 7


def test_invalid_jobs_are_refused_or_warned_of_as_the_app_says(driver: Driver) -> None:
    send = {"name": "send", "schema": SEND}
    declare(driver, send, app="mail", invalidJobs="refuse")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"name": "sned", "data": {"to": "a"}}, "'sned'"),
        ({"data": {"to": "a"}}, "'default'"),
        ({"name": "send", "data": {"to": 5}}, "is 5 at to, and a string is expected"),
        ({"name": "send", "data": {"to": "a", "cc": "b"}}, "at cc, and nothing is expected"),
        ({"name": "send", "data": {}}, "is nothing at to"),
        ({"name": "send"}, "is nothing at to"),
    ]
    for fields, text in wrong:
        for more in ({}, {"tags": ["x"]}, {"jobId": "own"}):
            refused = driver.ask(cmd="PUSH", queue="q", **fields, **more)
            assert text.replace("a string", "a text") in refused["error"], refused
        batch = driver.ask(cmd="PUSHB", queue="q", jobs=[{"name": "send", "data": {"to": "a"}}, fields])
        assert batch["error"].startswith("jobs[1]: ")
    assert "q" not in driver.shard.engine.state.queues  # a mistake changes nothing
    for right in ({"to": "a"}, {"to": "a", "copies": 2}, {"*": [{"to": 1}]}, ENVELOPE):
        assert "warnings" not in driver.ask(cmd="PUSH", queue="q", name="send", data=right)
    declare(driver, send, app="mail", invalidJobs="warn")
    for fields, text in wrong:
        for more in ({}, {"tags": ["x"]}, {"jobId": f"own-{text}"}):
            (warning,) = driver.ask(cmd="PUSH", queue="q", **fields, **more)["warnings"]
            assert text.replace("a string", "a text") in warning
    many = driver.ask(cmd="PUSHB", queue="q", jobs=[{"name": "send"}] * 20)
    assert (len(many["ids"]), len(many["warnings"])) == (20, 5)
    assert many["warnings"][1].startswith("jobs[1]: ")
    found = driver.ask(cmd="GetFunction", queue="q", name="send")
    assert (found["refused"], found["warned"]) == (30, 38)
    declare(driver, send, app="mail")
    assert "warnings" not in driver.ask(cmd="PUSH", queue="q", name="sned")


ENVELOPE = {"$encoded": "encrypted, key a", "v": 1, "body": b"x"}


def test_of_several_apps_the_last_declaration_counts_and_the_strictest_policy(driver: Driver) -> None:
    declare(driver, {"name": "a", "description": "first"}, app="one", version="1.0", invalidJobs="refuse")
    driver.tick(driver.now + 1000)
    declare(driver, {"name": "a", "description": "second"}, {"name": "b"}, app="two", by="host/7")
    a = listed(driver)[0]
    assert (a["app"], a["description"], a["by"], a["version"]) == ("two", "second", "host/7", None)
    assert driver.ask(cmd="PUSH", queue="q", name="b")["ok"]
    assert not driver.ask(cmd="PUSH", queue="q", name="c")["ok"]
    declare(driver, {"name": "b"}, app="two", anyName=True)
    assert driver.ask(cmd="PUSH", queue="q", name="c")["ok"]


def test_a_function_that_is_left_out_is_known_for_a_day(driver: Driver) -> None:
    declare(driver, {"name": "a"}, {"name": "b", "schema": SEND}, invalidJobs="refuse")
    began = driver.now
    driver.tick(driver.now + 1000)
    declare(driver, {"name": "a"}, invalidJobs="refuse")
    assert [(each["name"], each["retired"]) for each in listed(driver)] == [("a", None), ("b", driver.now)]
    assert driver.ask(cmd="PUSH", queue="q", name="b", data={"to": "a"})["ok"]
    driver.tick(driver.now + RETIRED_MS)
    assert not driver.ask(cmd="PUSH", queue="q", name="b", data={"to": "a"})["ok"]
    assert [each["name"] for each in listed(driver)] == ["a"]
    declare(driver, {"name": "a", "description": "changed"}, invalidJobs="refuse")
    (a,) = listed(driver)
    assert (a["revision"], a["changed"]) == (2, driver.now)
    assert driver.ask(cmd="RemoveFunction", queue="q", name="a")["ok"]
    assert driver.ask(cmd="RemoveFunction", queue="q", name="a")["error"].startswith("no app has declared")
    assert began < driver.now


def test_a_repeated_declaration_changes_nothing(driver: Driver) -> None:
    declare(driver, {"name": "a", "options": {"priority": 1}}, app="one", version="1")
    before = listed(driver)
    driver.tick(driver.now + 1000)
    declare(driver, {"name": "a", "options": {"priority": 1}}, app="one", version="1", by="another")
    assert listed(driver) == before
    declare(driver, {"name": "a", "options": {"priority": 1}}, app="one", version="2")
    (after,) = listed(driver)
    assert (after["version"], after["declared"], after["revision"]) == ("2", driver.now, 1)


def test_what_is_declared_survives_a_restart_and_goes_with_the_queue(driver: Driver) -> None:
    declare(driver, {"name": "a", "schema": SEND, "options": OPTIONS}, app="one", invalidJobs="refuse")
    before = listed(driver)
    driver.restart()
    assert listed(driver) == before
    assert job(driver, name="a", data={"to": "x"})["priority"] == 7
    assert driver.ask(cmd="GetFunction", queue="q", name="a")["function"]["schema"] == SEND
    assert not driver.ask(cmd="PUSH", queue="q", name="b")["ok"]
    driver.restart()
    assert not driver.ask(cmd="PUSH", queue="q", name="b")["ok"]
    assert driver.ask(cmd="Obliterate", queue="q")["ok"]
    assert listed(driver) == []
    assert driver.ask(cmd="PUSH", queue="q", name="b")["ok"]
    driver.restart()
    assert listed(driver) == []


def test_declarations_are_bounded_and_checked(driver: Driver) -> None:
    wide = {"enum": ["x" * 1200] * 17}
    rows: list[tuple[list[dict[str, Any]], str]] = [
        ([{"name": f"n{i}"} for i in range(MAX_FUNCTIONS + 1)], "functions must have at most 1000 entries"),
        ([{"name": ""}], "name"),
        ([{"name": "a"}, {"name": "b", "aliases": ["a"]}], "another function of the app is called 'a'"),
        ([{"name": "a", "schema": wide}], "functions[0].schema has "),
        ([{"name": "a", "schema": [1]}], "must be a JSON Schema"),
        ([{"name": "a", "description": "x" * 5000}], "at most 4096"),
        ([{"name": "a", "options": {"maxAttempts": 0}}], "maxAttempts must be at least 1"),
        ([{"name": "a", "options": {"jobId": "x"}}], "jobId is unknown"),
        ([{"name": "a", "options": {"removeOnFail": True, "keepFailed": 5}}], "keepFailed is 5"),
        ([{"name": "a", "options": {"onDead": {"name": "x", "data": "y" * 20_000}}}], "has 20,"),
        ([{"name": f"n{i}", "description": "x" * 4000} for i in range(300)], "at most 1,048,576"),
    ]
    for functions, text in rows:
        reply = driver.ask(cmd="DeclareFunctions", queue="q", functions=functions)
        assert text in reply.get("error", ""), (text, reply)
    assert listed(driver) == []


def test_a_hostile_schema_does_not_stop_the_shard(driver: Driver) -> None:
    forks: dict[str, Any] = {"a0": {"type": "string"}}
    for number in range(1, 60):
        before = {"$ref": f"#/$defs/a{number - 1}"}
        forks[f"a{number}"] = {"anyOf": [before, before]}
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"items": deep}
    rows = [
        {"$ref": "#"},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"$ref": "#/$defs/a59", "$defs": forks},
        {"$ref": "http://192.0.2.1/schema.json"},
        {"type": "string", "pattern": "^(a+)+$"},
        {"properties": {"x": {"enum": list(range(2000))}}},
        {"type": 5, "required": "x", "properties": [], "items": 7, "anyOf": {}, "minimum": "a"},
        deep,
    ]
    values = [{"x": 1}, "a" * 50 + "b", [[[]]], {"x": {"x": {"x": 1}}}]
    for schema in rows:
        function = {"name": "a", "schema": schema}
        declared = driver.ask(cmd="DeclareFunctions", queue="q", invalidJobs="refuse", functions=[function])
        began = time.process_time()
        jobs = [{"name": "a", "data": value} for value in values * 100]
        driver.ask(cmd="PUSHB", queue="q", jobs=jobs)
        driver.ask(cmd="GetFunction", queue="q", name="a")
        assert time.process_time() - began < 5, (schema, declared)  # it is some 0.1 s
