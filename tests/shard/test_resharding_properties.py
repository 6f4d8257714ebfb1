"""Whatever has happened in a folder: with another number of shards it holds the same, and life goes on there.

Between two changes of the number every shard does something, so that their jobs have the same numbers.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from engine.shard_driver import START, Driver
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.budget import budget
from support.folders import check_directory, contents, is_sound
from support.naming import shard_of

from bunqueue.server.folder.data_folder import open_data_folder, shard_file
from shardproc.resharding.process import reshard

QUEUES = tuple(f"q-{number}" for number in range(10))
JOBS: tuple[dict[str, Any], ...] = (
    {},
    {"priority": 5},
    {"lifo": True},
    {"delay": 1e9},
    {"maxAttempts": 1, "tags": ["a"]},
    {"uniqueKey": "only", "data": {"long": "x" * 2000}},
    {"groupId": "g"},
    {"removeOnComplete": True},
)


class Life:
    """The shards of a folder, and what is done to them."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder = folder
        self.now = START
        self.serial = 0
        self.once: dict[tuple[str, str], list[str]] = {}
        open_data_folder(folder, shards)
        self.open(shards)

    def open(self, shards: int) -> None:
        self.shards = [
            Driver(str(shard_file(self.folder, number)), now=self.now, shard=number, shards=shards)
            for number in range(shards)
        ]

    def close(self) -> None:
        for shard in self.shards:
            shard.close()

    def ask(self, queue: str, **command: Any) -> dict[str, Any]:
        self.now += 10
        driver = self.shards[shard_of(queue, len(self.shards))]
        driver.tick(self.now)
        driver.commit()
        return driver.ask(queue=queue, **command)

    def do(self, what: str, queue: str, number: int) -> None:
        match what:
            case "push":
                self.ask(queue, cmd="PUSHB", jobs=[{"data": 1, **JOBS[number]}] * (1 + number % 3))
            case "push own":
                self.ask(queue, cmd="PUSH", jobId=self.own_id(queue), **({"data": 1} | JOBS[number]))
            case "push once":
                self.push_once(queue, number)
            case "finish":
                self.finish(queue, number)
            case "log":
                for job in self.ask(queue, cmd="GetJobs", limit=2, asc=number % 2 == 0)["jobs"]:
                    self.ask(queue, cmd="AddLog", id=job["id"], message=f"line {number}")
            case "set":
                self.ask(queue, cmd="Pause" if number % 2 else "Resume")
                self.ask(queue, cmd="SetDlqConfig", config={"maxEntries": 10 + number})
                self.ask(queue, cmd="SetGroupConcurrency", groupId=f"g/{number}", concurrency=2)
                self.ask(queue, cmd="RateLimit", limit=100)
                self.ask(queue, cmd="Cron", name=f"cron {queue}", repeatEvery=10**9, data=number)
            case "trim":
                self.ask(queue, cmd="TrimEvents", maxLength=number)
            case command:
                self.ask(queue, cmd=command, count=2 if command == "RetryCompleted" else None)

    def push_once(self, queue: str, number: int) -> None:
        """A push that was perhaps carried out before: then it is not again."""
        key = queue, f"key {number}"
        ids = self.ask(queue, cmd="PUSHB", jobs=[{}] * 3, idempotencyKey=key[1], idempotencyAge=5)["ids"]
        assert self.once.setdefault(key, ids) == ids

    def own_id(self, queue: str) -> str:
        """A new one that no other shard has to be asked about."""
        shards = len(self.shards)
        while True:
            self.serial += 1
            if shard_of(f"own-{self.serial}", shards) == shard_of(queue, shards):
                return f"own-{self.serial}"

    def finish(self, queue: str, number: int) -> None:
        """Some jobs are done, some fail, some stay where they are."""
        pulled = self.ask(queue, cmd="PULLB", count=3, owner="w")
        for place, (job, token) in enumerate(zip(pulled["jobs"], pulled["tokens"], strict=True)):
            how = (number + place) % 4
            if how == 0:
                self.ask(queue, cmd="Progress", id=job["id"], progress=50, message="half")
            elif how == 1:
                self.ask(queue, cmd="FAIL", id=job["id"], token=token, error="no", stack="a\nb")
            else:
                result = "r" * (3000 if how == 3 else 10)
                self.ask(queue, cmd="ACK", id=job["id"], token=token, result=result)

    def reshard(self, shards: int) -> None:
        """Change the number; everything is as it was."""
        numbers = [shard.rows("select coalesce(max(seq), 0) from jobs")[0][0] for shard in self.shards]
        self.close()
        before = contents(self.folder)
        reshard(self.folder, shards, dry_run=False)
        assert contents(self.folder) == before
        assert is_sound(self.folder)
        check_directory(self.folder)
        self.open(shards)
        live = {job_id for driver in self.shards for job_id in driver.shard.engine.state.jobs}
        assert live == before["live"]
        smaller = min(shards, len(numbers))
        for number, driver in enumerate(self.shards):
            used = max(numbers[number % smaller :: smaller])
            assert driver.shard.engine.state.next_seq > used, "a number never comes again"


COMMANDS = (
    "push",
    "push",
    "push own",
    "push once",
    "finish",
    "finish",
    "log",
    "set",
    "trim",
    "RetryDlq",
    "RetryCompleted",
)
steps = st.lists(
    st.tuples(
        st.sampled_from((*COMMANDS, "PurgeDlq", "Obliterate")), st.sampled_from(QUEUES), st.integers(0, 7)
    ),
    max_size=25,
)


@pytest.mark.usefixtures("quiet")
@settings(max_examples=budget(5, 100))
@example([(1, [("push once", "q-0", 0)]), (4, []), (2, []), (1, [])], 1)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), steps), min_size=2, max_size=4), st.sampled_from([1, 2, 8])
)
def test_any_life_under_any_numbers(lives: list[tuple[int, list[tuple[str, str, int]]]], last: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        life = Life(Path(folder), lives[0][0])
        try:
            for shards, things in [*lives, (last, [])]:
                if shards != len(life.shards):
                    life.reshard(shards)
                for thing in things:
                    life.do(*thing)
        finally:
            life.close()


@pytest.fixture
def quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """What the command prints is not of interest."""
