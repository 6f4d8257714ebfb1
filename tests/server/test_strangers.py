"""Clients without a token: they do not stay, take nobody's place, and do not guess for long."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from router_harness import Client, RouterServer, framed, wait_for

from bunqueue.server.host.auth_throttle import DELAY_S, FREE
from router.clients.unauthenticated import MAX_REFUSALS, MAX_WRONG

TOKEN = "right-one"
TOKENS: dict[str, Any] = {"fake": True, "auth_token": (TOKEN,)}
PATIENT = {"clients.unauthenticated.AUTH_S": 600.0}  # with strangers whom a busy machine slows down, too


@pytest.fixture
def strangers() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def refusals(client: Client) -> int:
    """How often it is told no before the connection ends."""
    count = 0
    try:
        while True:
            assert client.recv()["ok"] is False
            count += 1
    except (EOFError, ConnectionError):
        return count


@pytest.mark.parametrize(
    ("frame", "most"),
    [
        (framed({"cmd": "Auth", "token": "wrong"}), MAX_WRONG),
        (framed({"cmd": "Ping"}), MAX_REFUSALS),
        (b"\0\0\0\1\xc1", MAX_REFUSALS),
    ],
    ids=["guesses", "commands", "junk"],
)
def test_a_few_refusals_end_it(tmp_path: Path, frame: bytes, most: int) -> None:
    changes = {"process.SWEEP_S": 0.05}
    with RouterServer(tmp_path, changes=changes, **TOKENS) as server, server.connect() as rogue:
        rogue.socket.sendall(frame * 500)
        assert 1 <= refusals(rogue) <= most
        with server.connect(TOKEN) as client:
            assert client.call(cmd="Ping")["ok"]
        if b"wrong" in frame:
            wait_for(
                lambda: re.search(r"wrong tokens over TCP wrong=\d+ address=127\.0\.0\.1 ", server.log())
            )
            assert "right" not in server.log()


def test_the_silent_do_not_lock_out_who_has_a_token(tmp_path: Path, strangers: ExitStack) -> None:
    with RouterServer(tmp_path, changes=PATIENT, max_connections=5, **TOKENS) as server:
        first = strangers.enter_context(server.connect(TOKEN))
        for _ in range(30):
            strangers.enter_context(server.connect())
        with server.connect(TOKEN) as late:
            assert late.call(cmd="Ping")["ok"]
        assert first.call(cmd="Ping")["ok"]


def test_who_shows_no_token_in_time_has_to_go(tmp_path: Path) -> None:
    changes = {"process.SWEEP_S": 0.05, "clients.unauthenticated.AUTH_S": 0.3}
    with RouterServer(tmp_path, changes=changes, **TOKENS) as server, in_time(server) as client:
        with server.connect() as silent:
            assert silent.closed()
        assert client.call(cmd="Ping")["ok"]
        wait_for(lambda: "closed connections that showed no token connections=" in server.log())


def in_time(server: RouterServer) -> Client:
    """A connection with a token; it had to be shown in less time than a busy machine may need."""

    def try_it() -> Client | None:
        with suppress(EOFError, ConnectionError):
            return server.connect(TOKEN)
        return None

    found: Client = wait_for(try_it, "it shows its token in time")
    return found


def test_one_address_has_so_many_strangers(tmp_path: Path, strangers: ExitStack) -> None:
    with RouterServer(
        tmp_path, changes={**PATIENT, "clients.unauthenticated.MAX_EACH": 3}, **TOKENS
    ) as server:
        clients = [strangers.enter_context(server.connect()) for _ in range(4)]
        assert clients[0].closed()
        assert all(client.call(cmd="Auth", token=TOKEN)["ok"] for client in clients[1:])


def test_many_guesses_at_once_are_slowed_down_as_well(tmp_path: Path) -> None:
    """Each over a connection of its own, all of them open before the first one guesses."""
    guess = framed({"cmd": "Auth", "token": "wrong"})
    with RouterServer(tmp_path, changes=PATIENT, **TOKENS) as server, ExitStack() as stack:
        rogues = [stack.enter_context(server.connect()) for _ in range(2 * FREE)]
        for rogue in rogues[:FREE]:
            rogue.socket.sendall(guess)
            assert rogue.recv()["code"] == "INVALID_TOKEN"
        began = time.monotonic()
        for rogue in rogues[FREE:]:
            rogue.socket.sendall(guess * MAX_WRONG + framed({"cmd": "Auth", "token": TOKEN}))
        for rogue in rogues[FREE:]:
            # A delayed answer is the last one, however many guesses a turn of the router took.
            assert 1 <= refusals(rogue) <= MAX_WRONG
        assert time.monotonic() - began >= DELAY_S


def test_an_address_that_guesses_waits_and_can_still_get_in(tmp_path: Path) -> None:
    with RouterServer(tmp_path, **TOKENS) as server:
        for _ in range(FREE // MAX_WRONG + 1):
            with server.connect() as rogue:
                rogue.socket.sendall(framed({"cmd": "Auth", "token": "wrong"}) * MAX_WRONG)
                refusals(rogue)
        with server.connect() as client:
            began = time.monotonic()
            assert client.call(cmd="Auth", token=TOKEN)["ok"]
            assert time.monotonic() - began >= DELAY_S, "it was heard at once"
