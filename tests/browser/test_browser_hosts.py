"""The page about the hosts of a cluster: three hosts on one store."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from cluster.hosts import Hosts
from playwright.sync_api import Page, expect
from support.browser import PHONE, Visit, act, toast
from support.postgres import Postgres
from support.server import Server
from support.waiting import wait_until

from bunqueue.store.setup import init

SHARDS = 4
TOKENS = ("--auth-token", "all", "--read-only-token", "look")


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with Postgres(standby=True) as postgres:
        url = postgres.new_database()
        init(url, SHARDS)
        with Hosts(url, tmp_path_factory.mktemp("hosts"), SHARDS) as made:
            made.start("a", "b", "c", flags=TOKENS, http=True)
            yield made


def enter(visit: Visit, server: Server, token: str, **window: tuple[int, int]) -> Page:
    """The page as somebody with this token sees it."""
    page = visit(server, **window).go("/hosts")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("h1")).to_have_text("Hosts")
    return page


def test_hosts_are_shown_drained_and_forgotten_and_shards_moved(hosts: Hosts, visit: Visit) -> None:
    page = enter(visit, hosts.servers["a"], "all")
    expect(page.get_by_role("link", name="Hosts")).to_have_attribute("aria-current", "page")
    expect(page.get_by_text("3 of 3 alive, as a sees it")).to_be_visible()
    expect(page.get_by_label("Shards", exact=True).locator("tbody tr")).to_have_count(SHARDS)
    first = page.get_by_label("Hosts", exact=True).locator("tbody tr").first
    expect(first.locator("[data-title='Last beat']")).to_have_text(re.compile(r"^(<1|\d+) ms$|^[1-3]\.\d s$"))
    expect(first.locator("[data-title=Load]")).to_have_text(re.compile(r"^\d+\.\d\d$"))
    shard = hosts.owners().index("b")
    shards = page.get_by_label("Shards", exact=True).locator("tbody tr")
    expect(shards.nth(shard)).to_contain_text("up to date")
    shards.nth(shard).get_by_role("button", name="Move").click()
    page.get_by_role("dialog").get_by_label("To").select_option("c")
    page.get_by_role("dialog").get_by_role("button", name="Move").click()
    toast(page, f"Shard {shard} moves to c")
    wait_until(lambda: hosts.owners()[shard] == "c", "the shard has moved")
    expect(shards.nth(shard).locator("[data-title=Owner]")).to_have_text("c")
    act(page, "Rebalance")
    toast(page, "The hosts get their shares")

    drained = page.get_by_label("Hosts", exact=True).locator("tbody tr").nth(1)
    drained.get_by_role("button", name="Drain").click()
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    expect(drained).to_contain_text("draining")
    expect(drained.locator("[data-title=Owns]")).to_have_text("0")
    assert "b" not in hosts.owners()
    drained.get_by_role("button", name="End drain").click()
    expect(drained).to_contain_text("alive")

    hosts.servers["b"].kill_all()
    expect(drained).to_contain_text("dead")
    drained.get_by_role("button", name="Forget").click()
    page.get_by_role("dialog").get_by_role("button", name="Forget").click()
    expect(page.get_by_text("2 of 2 alive, as a sees it")).to_be_visible()

    looking = enter(visit, hosts.servers["c"], "look", size=PHONE)
    expect(looking.get_by_label("Shards", exact=True).locator("tbody tr")).to_have_count(SHARDS)
    expect(looking.get_by_label("Hosts", exact=True).locator("tbody tr")).to_have_count(2)
    for name in ("Move", "Drain", "Rebalance"):
        expect(looking.get_by_role("button", name=name, exact=True)).to_have_count(0)
    assert looking.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0


def test_a_server_without_a_cluster_says_so(visit: Visit, shop: Server) -> None:
    page = visit(shop).go("/hosts")
    expect(page.get_by_text("This server is not a host of a cluster")).to_be_visible()
    expect(page.get_by_role("link", name="Hosts")).to_have_count(0)
