"""What must not happen while people work: numbers that change, words that vanish, focus that is lost."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, Route, expect
from support.browser import Api, Visit, act
from support.server import Server
from support.web import fresh_queue

LARGE = 9_007_199_254_740_993  # no number of JavaScript's


def test_whole_numbers_stay_as_they_are(visit: Visit, shop: Server, api: Api) -> None:
    job = api.push(
        fresh_queue(), data={"n": LARGE, "quoted": f"{LARGE} \\", "m": [-LARGE, 1.5]}, delay=600_000
    )
    page = visit(shop).go(f"/jobs/{job}")
    data = page.get_by_label("Data", exact=True)
    expect(data).to_contain_text(f'"n": {LARGE},')
    act(page, "Data")
    box = page.get_by_label("As JSON")
    box.fill(box.input_value().replace("1.5", "2.5"))
    act(page, "Save")
    expect(data).to_contain_text("2.5")
    found = api("GetJob", id=job)["job"]
    assert found["data"] == {"n": LARGE, "quoted": f"{LARGE} \\", "m": [-LARGE, 2.5]}  # type: ignore[index,call-overload]
    act(page, "Data")  # as it is now, not as it was when the page was opened
    expect(page.get_by_label("As JSON")).to_have_value(re.compile("2.5"))


def test_large_data_are_told_by_their_size(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    api.push(queue, data="x" * 1_500_000)
    page = visit(shop).go(f"/queues/{queue}")
    expect(page.locator("tbody tr")).to_contain_text("1.5 MB")


def test_a_dialog_goes_with_its_view(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    api.push(queue)
    page = visit(shop).go("/workers")
    expect(page.locator("h1")).to_have_text("Workers")
    page.evaluate(
        f"history.pushState(null, '', '/queues/{queue}'); dispatchEvent(new PopStateEvent('popstate'))"
    )
    act(page, "More")
    act(page, "Drain…")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.locator("h1")).to_have_text("Workers")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert api("Count", queue=queue)["count"] == 1


def test_addresses_that_make_no_sense(visit: Visit, shop: Server) -> None:
    visitor = visit(shop)
    page = visitor.go("/jobs/%E0")
    expect(page.get_by_text("Job not found")).to_be_visible()
    page = visitor.go("/dlq?from=long-ago&page=-3")
    expect(page.locator(".problem")).to_have_text("")
    visitor.expect_refusal(422)
    page = visitor.go("/events?event=nonsense")
    expect(page.locator(".problem")).to_contain_text("there is no event 'nonsense'")


def test_a_page_past_the_end_is_the_last_one(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    for number in range(51):
        api.push(queue, data=number)
    visitor = visit(shop)
    page = visitor.go(f"/queues/{queue}?page=99")
    expect(page.get_by_text("51\N{EN DASH}51 of 51")).to_be_visible()
    expect(page).to_have_url(re.compile("page=1$"))
    page = visitor.go(f"/queues/{fresh_queue()}?page=99")
    expect(page.get_by_text("This queue has no jobs")).to_be_visible()
    expect(page).not_to_have_url(re.compile("page"))


def test_keyboard_users_stay_where_they_are(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    api("PUSHB", queue=queue, jobs=[{"data": number} for number in range(120)])
    page = visit(shop).go(f"/queues/{queue}")
    following = page.get_by_role("button", name="Next")
    following.press("Enter")
    expect(page).to_have_url(re.compile("page=1"))
    expect(page.get_by_text(re.compile("51.100 of 120"))).to_be_visible()
    expect(following).to_be_focused()
    following.press("Enter")
    expect(page.get_by_text(re.compile("101.120 of 120"))).to_be_visible()
    following.press("Enter")  # there is no other page
    expect(following).to_be_focused()
    expect(page).to_have_url(re.compile("page=2"))
    page.go_back()
    expect(page.get_by_text(re.compile("51.100 of 120"))).to_be_visible()
    tab = page.get_by_role("link", name=re.compile("^Waiting"))
    tab.press("Enter")
    expect(page.get_by_role("link", name=re.compile("^Waiting"))).to_be_focused()
    page.locator("tbody a").first.press("Enter")
    expect(page.locator("h1")).to_have_text("default")
    expect(page.locator("main")).to_be_focused()


def test_rows_that_move_keep_the_focus(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    jobs = [api.push(queue, name=f"job-{number}") for number in range(3)]
    page = visit(shop).go(f"/queues/{queue}")
    link = page.locator(f'a[href="/jobs/{jobs[0]}"]')
    link.focus()
    api("Discard", id=jobs[2])
    api("RemoveJob", id=jobs[1])
    expect(page.get_by_label(f"Jobs of {queue}", exact=True).locator("tbody tr")).to_have_count(2)
    expect(link).to_be_focused()


def test_what_somebody_writes_stays(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    api.fail(queue, "one")
    page = visit(shop).go(f"/dlq/{queue}")
    expect(page.get_by_label("Dead letters", exact=True).locator("tbody tr")).to_have_count(1)
    page.get_by_label("Error has").fill("half a wo")
    page.get_by_role("heading", name="Dead letters").click()  # the focus goes elsewhere
    api.fail(queue, "two")
    expect(page.get_by_label("Dead letters", exact=True).locator("tbody tr")).to_have_count(2)
    expect(page.get_by_label("Error has")).to_have_value("half a wo")


def test_purging_everything_is_asked_as_carefully(visit: Visit, shop: Server, api: Api) -> None:
    api.fail(fresh_queue(), "one")
    page = visit(shop).go("/dlq")
    act(page, "Purge")
    purge = page.get_by_role("dialog").get_by_role("button", name="Purge")
    expect(purge).to_be_disabled()
    page.get_by_label("Type all queues to go on").fill("all queues")
    expect(purge).to_be_enabled()
    act(page, "Cancel")


def test_copying_says_what_was_copied(visit: Visit, shop: Server, api: Api) -> None:
    job = api.push(fresh_queue(), data={"to": "ada"}, delay=600_000)
    page = visit(shop).go(f"/jobs/{job}")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")  # as without TLS
    copy = page.locator(".json .copy")
    copy.click()
    expect(copy).to_have_text("Copied")
    act(page, "Data")
    page.get_by_label("As JSON").fill("")
    page.keyboard.press("Control+v")
    assert json.loads(page.get_by_label("As JSON").input_value()) == {"to": "ada"}


def test_a_shard_that_is_down_is_shown(visit: Visit, shop: Server) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(json={"ok": False, "error": "shard 1 is restarting"})

    def one_shard(route: Route) -> None:
        reply = route.fetch().json()
        reply["data"]["shards"] = [each for each in reply["data"]["shards"] if each["shard"] == 0]
        route.fulfill(json=reply)

    visitor = visit(shop)
    visitor.page.route("**/commands/Dashboard*", refuse)
    visitor.page.route("**/commands/ListShards", one_shard)
    page = visitor.go("/")
    expect(page.locator(".shard").filter(has_text="does not answer")).to_have_text(re.compile("Shard 1"))
    expect(page.locator(".problem").first).to_have_text("shard 1 is restarting")
    visitor.page.unroute_all()


def test_where_each_shard_is_in_its_store(visit: Visit, shop: Server) -> None:
    """A position while all is well; since when the store is unavailable; that PostgreSQL waits for nobody."""
    stores: list[dict[str, Any]] = [
        {"awaySince": None, "protected": True},
        {"awaySince": 1_790_000_000_000, "protected": True},
    ]
    well = {"position": 1812, "epoch": 3, "phase": "owning", "held": 0, "roundTripMs": 1.26}

    def with_stores(route: Route) -> None:
        reply = route.fetch().json()
        for shard in reply["data"]["shards"]:
            shard["store"] = well | stores[shard["shard"]]
        route.fulfill(json=reply)

    visitor = visit(shop)
    visitor.page.route("**/commands/ListShards", with_stores)
    page = visitor.go("/")
    first, second = page.locator(".shard").nth(0), page.locator(".shard").nth(1)
    expect(first).to_contain_text("position 1,812, epoch 3 · a commit takes 1.3 ms")
    expect(second.locator(".bad")).to_have_text(re.compile("store unavailable since 21 Sept?"))
    stores[0]["protected"] = False
    expect(first.locator(".bad")).to_contain_text("no synchronous standby")
    visitor.page.unroute_all()


def drawn(page: Page, kind: str) -> None:
    expect(page.locator(f".chart .line[data-kind={kind}]").first).to_have_attribute("d", re.compile("L"))


def test_charts_begin_before_the_page(visit: Visit, shop: Server) -> None:
    page = visit(shop).go("/?sort=-waiting&find=e")
    for kind in ("added", "completed", "waiting", "active"):
        drawn(page, kind)
    expect(page.get_by_role("img", name=re.compile(r"Latency: waited .*\d m?s, and \d"))).to_be_visible()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Waiting")
    expect(page.get_by_label("Find a queue")).to_have_value("e")
    page.get_by_role("button", name="1 hour").click()
    expect(page).to_have_url(re.compile("span=1h"))
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")
    page.reload()
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")


def test_times_go_on(visit: Visit, shop: Server, api: Api) -> None:
    job = api.push(fresh_queue(), delay=600_000)
    page = visit(shop).go(f"/jobs/{job}")
    why = page.get_by_role("region", name="Why it is waiting").locator("time")
    before = why.inner_text()
    expect(why).not_to_have_text(before)


def test_every_attempt_is_told(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    job = api.push(queue, maxAttempts=3, backoff=0)
    api("PULL", queue=queue)
    api("FAIL", id=job, error="first")
    api("PULL", queue=queue, timeout=60_000)
    page = visit(shop).go(f"/jobs/{job}")
    expect(page.locator(".attempts > li")).to_contain_text(["Attempt 2", "Attempt 1"])
    expect(page.locator(".attempts > li").first).to_contain_text("began")
    api("ACK", id=job)
    expect(page.locator(".attempts > li").first).to_contain_text("completed")


def test_children_are_looked_at_again(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    children = [api.push(queue, name="child") for _ in range(2)]
    parent = api.push(fresh_queue(), name="parent", dependsOn=children, childrenIds=children)
    page = visit(shop).go(f"/jobs/{parent}")
    expect(page.get_by_text("0 of 2 children completed")).to_be_visible()
    api("PULL", queue=queue)
    api("ACK", id=children[0])
    api("AddLog", id=parent, message="one is done")
    expect(page.get_by_text("1 of 2 children completed")).to_be_visible()
