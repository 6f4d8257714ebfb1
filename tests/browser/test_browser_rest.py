"""Dead letters, schedules and webhooks."""

from __future__ import annotations

from playwright.sync_api import expect
from support.browser import Api, Visit, act, toast
from support.receiver import receiving
from support.server import Server
from support.web import fresh_queue


def test_dead_letters_are_filtered_and_retried(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    banks = [api.fail(queue, f"the bank said no {number}", name="pay") for number in range(3)]
    taxes = [api.fail(queue, "the tax office slept", name="declare") for _ in range(2)]
    page = visit(shop).go("/dlq")
    expect(page.get_by_label("Dead letters").locator("tbody tr").first).to_be_visible()
    page.get_by_label("Queue").select_option(queue)
    rows = page.get_by_label("Dead letters", exact=True).locator("tbody tr")
    expect(rows).to_have_count(5)
    page.get_by_label("Error has").fill("BANK")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(3)
    page.get_by_label(f"Select {banks[0]}").check()
    act(page, "Retry 1 selected job")
    toast(page, "1 job waits for another try")
    expect(rows).to_have_count(2)
    act(page, "Retry all 2 that match")
    expect(page.get_by_role("dialog")).to_contain_text("Retry 2 dead letters?")
    page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    toast(page, "2 jobs back in the queue")
    expect(page.get_by_text("Nothing matches this filter")).to_be_visible()
    assert {api.state(job) for job in banks} == {"waiting"}
    page.get_by_label("Error has").fill("")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(2)
    page.get_by_label(f"Select {taxes[0]}").check()
    act(page, "Remove 1 selected job", "Remove")
    expect(rows).to_have_count(1)
    act(page, "Purge")
    page.get_by_label(f"Type {queue} to go on").fill(queue)
    page.get_by_role("dialog").get_by_role("button", name="Purge").click()
    toast(page, "1 dead letter removed")
    expect(page.get_by_text("No dead letters")).to_be_visible()


def test_schedules(visit: Visit, shop: Server, api: Api) -> None:
    queue, name = fresh_queue(), fresh_queue()
    visitor = visit(shop)
    page = visitor.go("/cron")
    act(page, "Add schedule")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_label("Queue").fill(queue)
    dialog.get_by_label("Cron expression").fill("61 * * * *")
    visitor.expect_refusal(422)
    dialog.get_by_role("button", name="Add schedule").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Invalid cron expression")
    dialog.get_by_label("Cron expression").fill("30 3 * * *")
    dialog.get_by_label("Time zone").fill("Europe/Rome")
    dialog.get_by_label("or every so many ms").fill("5000")
    dialog.get_by_role("button", name="Add schedule").click()
    expect(dialog.get_by_role("alert")).to_contain_text("not both")
    dialog.get_by_label("or every so many ms").fill("")
    dialog.get_by_role("button", name="Add schedule").click()
    toast(page, f"{name} runs in")
    page.get_by_role("searchbox").fill(name)
    row = page.locator("tbody tr")
    expect(row).to_have_count(1)
    row.get_by_role("button", name="Next runs").click()
    expect(page.locator(".runs li")).to_have_count(10)
    expect(page.locator(".runs li").first).to_contain_text("03:30:00")
    act(page, "Close")
    row.get_by_role("button", name="Run now").click()
    toast(page, f"{name} has added a job")
    expect(row).to_contain_text("not ended")
    row.get_by_role("button", name="Run now").click()
    toast(page, f"The last job of {name} is still there")
    job = api("PULL", queue=queue)["job"]
    api("ACK", id=job["id"])
    expect(row).to_contain_text("completed")
    expect(row.locator(f"a[href='/jobs/{job['id']}']")).to_be_visible()
    row.get_by_role("button", name="Pause").click()
    expect(row).to_contain_text("paused")
    row.get_by_role("button", name="Resume").click()
    expect(row).not_to_contain_text("paused")
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    toast(page, f"{name} is deleted")
    expect(page.get_by_text("No schedules")).to_be_visible()


def test_webhooks(visit: Visit, shop: Server) -> None:
    with receiving() as receiver:
        page = visit(shop).go("/webhooks")
        expect(page.get_by_text("No webhooks")).to_be_visible()
        act(page, "Add webhook")
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("URL").fill(receiver.url)
        dialog.get_by_label("job.completed").check()
        dialog.get_by_label("Queue").fill(fresh_queue())
        dialog.get_by_role("button", name="Add webhook").click()
        row = page.locator("tbody tr")
        expect(row).to_contain_text(receiver.url)
        expect(row).to_contain_text("job.completed, job.failed")
        row.get_by_role("button", name="Test").click()
        toast(page, "The test was delivered: status 200")
        receiver.status = 500
        row.get_by_role("button", name="Test").click()
        toast(page, "the receiver answered 500")
        row.get_by_role("button", name="Switch off").click()
        expect(row).to_contain_text("off")
        row.get_by_role("button", name="Switch on").click()
        expect(row.get_by_role("button", name="Switch off")).to_be_visible()
        row.get_by_role("button", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(page.get_by_text("No webhooks")).to_be_visible()
