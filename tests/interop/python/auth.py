"""A server that wants a token: it is in TOKEN."""

from __future__ import annotations

import os

import pytest
from support import new_queue, reaches, unique, work

from bunqueue import AuthError, BunqueueError

TOKEN = os.environ["TOKEN"]


def test_with_the_token() -> None:
    queue = new_queue(token=TOKEN)
    with work(queue.name, lambda job: "ok", token=TOKEN):
        job = queue.add("x")
        reaches(queue, job.id, "completed")
    assert queue.get_result(job.id) == "ok"


@pytest.mark.parametrize(("token", "error"), [("wrong", AuthError), (None, BunqueueError)])
def test_without_it(token: str | None, error: type[Exception]) -> None:
    name = unique()
    with pytest.raises(error, match=r"Authentication failed|Invalid token|Not authenticated"):
        new_queue(name, token=token).add("x")
    assert new_queue(name, token=TOKEN).count() == 0
