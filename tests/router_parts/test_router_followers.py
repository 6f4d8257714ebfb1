"""The process that follows shards, and when others may open the files that it has open."""

from __future__ import annotations

import sys

from support.waiting import eventually

from bunqueue.server.settings.settings import Settings
from router.cluster.followers import Followers, Report
from router.processes.launcher import Launcher

# Of each order it says first what it would have said before, and then that it could open nothing yet.
SLOW = """
import json, sys
sys.stdin.readline()
for line in sys.stdin:
    number = json.loads(line)["number"]
    for order in (number - 1, number):
        print(json.dumps({"observed": [], "order": order}), flush=True)
"""


async def test_a_file_is_not_opened_by_two_while_an_order_is_under_way() -> None:
    """What the follower has been told to follow it may open at any moment, until it has heard otherwise."""
    seen: list[frozenset[int]] = []

    def reported(report: Report) -> None:
        seen.append(followers.open)

    followers = Followers(Settings(shards=2), "a", reported, Launcher(), (sys.executable, "-c", SLOW))
    followers.start()
    await eventually(lambda: len(seen) == 2, "the first order is heard")
    followers.follow(frozenset({1}))
    assert followers.open == {1}
    await eventually(lambda: len(seen) == 4, "the second order is heard")
    followers.follow(frozenset())
    assert followers.open == {1}
    await eventually(lambda: len(seen) == 6, "the third order is heard")
    await followers.stop()
    one = frozenset({1})
    none: frozenset[int] = frozenset()
    assert seen == [none, none, one, one, one, none]
