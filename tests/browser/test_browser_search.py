"""Search: jobs by conditions, addresses for colleagues, and changing all that is found."""

from __future__ import annotations

from urllib.parse import quote_plus

from playwright.sync_api import Page, expect
from support.browser import Api, Visit, act, toast
from support.server import Server
from support.web import fresh_queue


def dead(api: Api, queue: str, count: int) -> list[str]:
    """Dead letters with the number of an order, from 0 on."""
    return [
        api.fail(queue, "the bank said no", name="pay", data={"order": {"id": number}}, tags=[queue])
        for number in range(count)
    ]


def change_all(page: Page, entry: str) -> None:
    act(page, "Change all that match")
    act(page, entry)


def test_a_search_has_an_address_that_a_colleague_opens(visit: Visit, shop: Server, api: Api) -> None:
    queue, other = fresh_queue(0), fresh_queue(1)
    api("PUSHB", queue=queue, jobs=[{"data": {"n": number}, "tags": [queue]} for number in range(70)])
    api.push(other, name="rare", tags=[queue])
    page = visit(shop).go("/search")
    rows = page.get_by_label("Jobs found").locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_label("Conditions", exact=True).fill(f"tag = {queue}")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_text("1\N{EN DASH}50")).to_be_visible()
    expect(rows.first).to_contain_text("rare")
    page.locator("select[name=order]").select_option("oldest first")
    expect(rows.first).to_contain_text('{"n":0}')
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(21)
    there = visit(shop).go(page.url.removeprefix(shop.url))
    expect(there.get_by_label("Conditions", exact=True)).to_have_value(f"tag = {queue}")
    expect(there.get_by_label("Jobs found").locator("tbody tr")).to_have_count(21)
    expect(there.get_by_label("Jobs found").locator("tbody tr").last).to_contain_text("rare")
    page.go_back()
    expect(rows).to_have_count(50)
    page.get_by_label("Queue").select_option(other)
    expect(rows).to_have_count(1)


def test_the_box_of_every_page_searches(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    api.push(queue, data={"order": {"id": 7}})
    api.push(queue, data={"order": {"id": 8}})
    visitor = visit(shop)
    page = visitor.go(f"/queues/{queue}")
    page.get_by_role("link", name="Search", exact=True).last.click()
    expect(page.get_by_label("Jobs found").locator("tbody tr")).to_have_count(2)
    box = page.get_by_label("Go to a job by its id")
    box.fill(f"data.order.id = 7 and queue = {queue}")
    box.press("Enter")
    expect(page.get_by_label("Jobs found").locator("tbody tr")).to_have_count(1)
    visitor.expect_refusal(422)
    page.get_by_label("Conditions", exact=True).fill("colour = red")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert").first).to_contain_text("no field")


def test_all_that_is_found_is_counted_and_changed(visit: Visit, shop: Server, api: Api) -> None:
    queue, other = fresh_queue(0), fresh_queue(1)
    jobs = dead(api, queue, 5)
    visitor = visit(shop)
    page = visitor.go(f"/search?q={quote_plus(f'tag = {queue} and data.order.id >= 2')}")
    expect(page.get_by_label("Jobs found").locator("tbody tr")).to_have_count(3)
    change_all(page, "Retry\N{HORIZONTAL ELLIPSIS}")
    page.get_by_label("At most").fill("2")
    act(page, "Count them")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("The oldest 2 of 3")
    assert {api.state(job) for job in jobs} == {"failed"}, "it was only counted"
    act(page, "Retry 2")
    toast(page, "2 jobs run again")
    assert [api.state(job) for job in jobs] == ["failed"] * 2 + ["waiting"] * 2 + ["failed"]
    change_all(page, "Move\N{HORIZONTAL ELLIPSIS}")
    page.get_by_label("To the queue").fill(other)
    act(page, "Count them", "Move 3")
    toast(page, "3 jobs moved")
    expect(page.get_by_label("Jobs found").locator("tbody tr").filter(has_text=other)).to_have_count(3)
    change_all(page, "Prioritise\N{HORIZONTAL ELLIPSIS}")
    page.get_by_label("Priority", exact=True).fill("7")
    act(page, "Count them", "Prioritise 3")
    toast(page, "3 jobs have the priority")
    change_all(page, "Cancel jobs\N{HORIZONTAL ELLIPSIS}")
    act(page, "Count them", "Cancel jobs 3")
    toast(page, "3 jobs cancelled")
    page = visitor.go(f"/search?queue={queue}")
    change_all(page, "Remove\N{HORIZONTAL ELLIPSIS}")
    act(page, "Count them", "Remove 2")
    toast(page, "2 jobs removed")
    expect(page.get_by_text("No job meets these conditions")).to_be_visible()


def test_nothing_is_offered_for_all_jobs_there_are(visit: Visit, shop: Server) -> None:
    page = visit(shop).go("/search")
    expect(page.get_by_label("Jobs found").locator("tbody tr").first).to_be_visible()
    expect(page.get_by_role("button", name="Change all that match")).to_have_count(0)
