"""What a follower says of the owners of shards."""

from __future__ import annotations

from pathlib import Path

import psycopg

from bunqueue.server.folder.data_folder import shard_file
from bunqueue.server.settings.settings import Settings
from bunqueue.store.database import conninfo
from bunqueue.store.setup import init
from shardproc.replication.follower import Follower

ENDED = """
    select pg_terminate_backend(pid) from pg_stat_activity
    where datname = current_database() and pid <> pg_backend_pid()
"""


def test_while_the_store_is_away_no_owner_is_to_blame_for_its_beat(database: str, tmp_path: Path) -> None:
    init(database, 2)
    folder = tmp_path / "data"
    shard_file(folder, 0).parent.mkdir(parents=True, exist_ok=True)
    follower = Follower("a", Settings(shards=2, data_dir=str(folder), store=database))
    follower.wanted = {0}
    with psycopg.connect(conninfo(database), autocommit=True) as connection:
        connection.execute("update bunqueue.shards set owner = 'b/1', epoch = 1 where id = 0")
        follower.catch_up()
        follower._open[0].heartbeat_since -= 60
        (sight,) = follower.catch_up().observed
        assert sight.unchanged_s >= 60
        connection.execute(ENDED)
        follower._answered_at -= 58
        assert follower.catch_up().unavailable_s > 58
        (sight,) = follower.catch_up().observed
        assert (sight.token, sight.epoch) == ("b/1", 1)
        assert sight.unchanged_s < 20
    follower.close()
