"""A server that keeps its connections and does not answer is not waited for, for ever."""

from __future__ import annotations

import time

import psycopg
import pytest
from support.postgres import Postgres
from support.waiting import PATIENCE_S

from bunqueue.store import answer_timeout
from bunqueue.store.answer_timeout import AnswerTimeout


def test_a_question_that_is_not_answered_ends(cluster: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_timeout, "FIRST_S", PATIENCE_S)
    waits = AnswerTimeout()
    with psycopg.connect(cluster.url, autocommit=True) as connection:
        with waits.with_answer_of(connection):
            assert connection.execute("select 1").fetchone() == (1,)
        cluster.leader.pause()
        waits.seconds = 0.3
        begun = time.monotonic()
        try:
            with pytest.raises(psycopg.OperationalError), waits.with_answer_of(connection):
                connection.execute("select 1")
        finally:
            cluster.leader.resume()
        assert 0.3 <= time.monotonic() - begun < PATIENCE_S
        assert connection.closed
        assert waits.seconds == 0.6, "the next one may need longer"
    waits.seconds = 2 * PATIENCE_S
    with psycopg.connect(cluster.url) as connection, waits.with_answer_of(connection):
        connection.execute("select 1")
    assert waits.seconds == PATIENCE_S, "one that is answered has the usual time again"
