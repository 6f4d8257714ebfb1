"""A queue and a job: what they show, and every action on them."""

from __future__ import annotations

import re

from playwright.sync_api import expect
from support.browser import Api, Visit, act, toast
from support.server import Server
from support.web import fresh_queue

from bunqueue import Codec, Encryption, Queue


def test_jobs_page_by_page_and_by_state(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    api("PUSHB", queue=queue, jobs=[{"name": f"job-{number}", "data": number} for number in range(120)])
    api.push(queue, name="later", delay=600_000)
    page = visit(shop).go(f"/queues/{queue}")
    expect(page.locator("tbody tr")).to_have_count(50)
    expect(page.get_by_text("50 of 121")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    expect(page.locator("section .table-wrap").first.locator("tbody tr")).to_have_count(21)
    page.get_by_role("link", name=re.compile("^Delayed")).click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text("later")
    page.goto(f"{page.url.split('?')[0]}?state=none-of-them")
    expect(page.get_by_text("50 of 121")).to_be_visible()
    page.get_by_role("link", name=re.compile("^Waiting")).click()
    page.get_by_label("Order", exact=True).select_option("oldest first")
    expect(page.locator("tbody tr").first).to_contain_text("job-0")


def test_a_queue_is_ruled(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    page = visit(shop).go(f"/queues/{queue}")
    expect(page.get_by_text("This queue has no jobs")).to_be_visible()
    act(page, "Add job")
    page.get_by_label("Name").fill("hello")
    page.get_by_label("Data, as JSON").fill("{oops")
    page.get_by_role("dialog").get_by_role("button", name="Add job").click()
    expect(page.get_by_role("alert").filter(has_text="data is not JSON")).to_be_visible()
    page.get_by_label("Data, as JSON").fill('{"to": "ada"}')
    page.get_by_label("Group").fill("acme")
    page.get_by_label("Kept when completed, hours").fill("2")
    page.get_by_role("dialog").get_by_role("button", name="Add job").click()
    toast(page, "Added")
    expect(page.get_by_label(f"Jobs of {queue}").locator("tbody tr")).to_contain_text("hello")
    assert api("GetJobs", queue=queue)["jobs"][0]["keepCompleted"] == 2 * 3_600_000
    expect(page.get_by_label("Groups").locator("tbody tr")).to_contain_text("acme")
    page.locator(".page-head").get_by_role("button", name="Pause").click()
    expect(page.locator("h1")).to_contain_text("paused")
    page.locator(".page-head").get_by_role("button", name="Resume").click()
    expect(page.locator("h1")).not_to_contain_text("paused")
    act(page, "Change")
    for wrong in ("0", "2.5"):  # a limit of 0 is a pause that nobody sees
        page.get_by_label("Active at a time").fill(wrong)
        act(page, "Save")
        expect(page.get_by_label("Active at a time").and_(page.locator(":invalid"))).to_be_visible()
    page.get_by_label("Jobs", exact=True).fill("5")
    page.get_by_label("Active at a time").fill("2")
    act(page, "Save")
    expect(page.get_by_text("5 jobs in 1.0 s")).to_be_visible()
    expect(page.get_by_text("at most 2")).to_be_visible()
    groups = page.get_by_label("Groups")
    groups.get_by_role("button", name="Limits").click()
    page.get_by_label("Active at a time").fill("1")
    act(page, "Save")
    expect(groups).to_contain_text("0 of 1")
    groups.get_by_role("button", name="Pause").click()
    expect(groups).to_contain_text("paused")


def test_a_queue_is_emptied_only_when_that_is_meant(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    api("PUSHB", queue=queue, jobs=[{"data": 1}] * 3 + [{"data": 1, "delay": 600_000}])
    page = visit(shop).go(f"/queues/{queue}")
    expect(page.locator("tbody tr")).to_have_count(4)
    act(page, "More")
    act(page, "Run delayed jobs now")
    toast(page, "1 job may run now")
    act(page, "More")
    act(page, "Drain…")
    expect(page.get_by_role("dialog")).to_contain_text("4 waiting or delayed jobs")
    act(page, "Cancel")
    assert api("Count", queue=queue)["count"] == 4
    act(page, "More")
    act(page, "Drain…", "Drain")
    toast(page, "4 jobs removed")
    api.push(queue)
    act(page, "More")
    act(page, "Clean…")
    page.get_by_label("State", exact=True).select_option("Waiting")
    page.get_by_label("Older than, hours").fill("0")
    page.get_by_role("dialog").get_by_role("button", name="Remove jobs").click()
    toast(page, "1 job removed")
    act(page, "More")
    act(page, "Obliterate…")
    confirm = page.get_by_role("dialog").get_by_role("button", name="Obliterate")
    expect(confirm).to_be_disabled()
    page.get_by_label(f"Type {queue} to go on").fill(queue)
    confirm.click()
    toast(page, f"{queue} is gone")
    expect(page.locator("h1")).to_have_text("Overview")


def test_a_job_says_why_it_waits_and_is_changed(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    job = api.push(queue, name="slow", data={"n": 1, "ok": True, "html": "<b>no</b>"}, delay=600_000)
    visitor = visit(shop)
    page = visitor.go(f"/jobs/{job}")
    expect(page.locator("h1")).to_have_text("slow")
    why = page.get_by_role("region", name="Why it is waiting")
    expect(why).to_contain_text("Its time has not come: in 9 min")
    expect(why).to_contain_text("No worker is connected")
    api("Pause", queue=queue)
    expect(why).to_contain_text(f"The queue {queue} is paused")  # by its own polling, or by an event
    expect(page.get_by_label("Data", exact=True)).to_contain_text('"html": "<b>no</b>"')
    act(page, "Data")
    page.get_by_label("As JSON").fill('{"n": 2}')
    act(page, "Save")
    expect(page.get_by_label("Data", exact=True)).to_contain_text('"n": 2')
    act(page, "Priority")
    page.get_by_role("spinbutton").fill("9999999")
    visitor.expect_refusal(422)
    act(page, "Save")
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("priority must be")
    page.get_by_role("spinbutton").fill("7")
    act(page, "Save")
    toast(page, "The priority is changed")
    act(page, "Run now")
    expect(page.locator(".page-head .badge")).not_to_have_text("delayed")
    act(page, "Discard", "Discard")
    expect(page.locator(".page-head .badge")).to_have_text("failed")
    act(page, "Retry")
    expect(page.locator(".page-head .badge")).not_to_have_text("failed")
    act(page, "Cancel")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    toast(page, "It is cancelled")


def test_a_job_tells_its_story(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    job = api.fail(queue, "No route to the bank", data={"amount": 12})
    api("AddLog", id=job, message="first line", level="warn")
    page = visit(shop).go(f"/jobs/{job}")
    expect(page.locator(".attempts")).to_contain_text("No route to the bank")
    expect(page.locator(".attempts pre")).to_contain_text("at line 42")
    expect(page.locator(".logs")).to_contain_text("first line")
    expect(page.locator(".timeline")).to_contain_text("failed")
    act(page, "Remove", "Remove")
    toast(page, "The job is removed")
    expect(page.locator("h1")).to_contain_text(queue)
    assert api.state(job) == "unknown"


def test_the_attempts_of_a_job_that_was_retried(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    job = api.fail(queue, "No route to the bank")
    api("RetryDlq", queue=queue, jobId=job)
    api("PULL", queue=queue)
    api("Progress", id=job, progress=200 / 3)
    page = visit(shop).go(f"/jobs/{job}")
    expect(page.locator(".progress")).to_contain_text("67 %")
    expect(page.locator(".attempts > li")).to_contain_text(["Attempt 2", "Attempt 1"])
    expect(page.locator(".facts").first).to_contain_text("0 failures, 1 allowed")


def test_an_active_job_is_stopped_and_a_finished_one_runs_again(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    job = api.push(queue, name="long", keepCompleted=3_600_000, keepFailed=86_400_000)
    token = api("PULL", queue=queue, owner="w")["token"]
    api("Progress", id=job, progress=40, message="half way, nearly")
    page = visit(shop).go(f"/jobs/{job}")
    expect(page.locator(".progress")).to_contain_text("40 % · half way, nearly")
    kept = page.locator(".facts dt", has_text="Kept").locator("+ dd")
    expect(kept).to_have_text("1 h when it has completed, 1 d as a dead letter")
    act(page, "Cancel")
    page.get_by_label("Reason").fill("not needed")
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".page-head .badge")).to_have_text("stopping")
    api("FAIL", id=job, error="stopped", token=token)
    expect(page.locator(".page-head .badge")).to_have_text("cancelled")
    api("Cron", name=f"cron-of-{queue}", queue=queue, repeatEvery=9_000_000)
    done = api("CronTrigger", name=f"cron-of-{queue}")["id"]
    api("PULL", queue=queue)
    api("ACK", id=done, result={"answer": 42})
    page = visit(shop).go(f"/jobs/{done}")
    expect(page.get_by_label("Result", exact=True)).to_contain_text('"answer": 42')
    expect(page.locator(".facts dt", has_text="Scheduled by").locator("+ dd")).to_have_text(
        f"cron-of-{queue}"
    )
    expect(page.locator(".facts dt", has_text="Scheduled for")).to_be_visible()
    act(page, "Run again")
    expect(page.locator(".page-head .badge")).to_have_text("waiting")


def test_a_flow_is_walked(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    child = api.push(queue, name="child")
    parent = api.push(queue, name="parent", dependsOn=[child], childrenIds=[child])
    page = visit(shop).go(f"/jobs/{parent}")
    expect(page.get_by_role("region", name="Why it is waiting").get_by_title(child)).to_be_visible()
    expect(page.locator(".flow")).to_contain_text("Children")
    page.locator(".flow a").click()
    expect(page.locator("h1")).to_have_text("child")


def test_a_job_that_is_not_there(visit: Visit, shop: Server) -> None:
    page = visit(shop).go("/")
    page.get_by_label("Go to a job by its id").fill("no-such-job")
    page.keyboard.press("Enter")
    expect(page.get_by_text("Job not found")).to_be_visible()


def test_dropped_dead_letters_have_a_red_note(visit: Visit, shop: Server, api: Api) -> None:
    queue = fresh_queue()
    visitor = visit(shop)
    page = visitor.go(f"/queues/{queue}")
    expect(page.get_by_text("This queue has no jobs")).to_be_visible()
    note = page.get_by_role("status").filter(has_text="dropped")
    expect(note).to_be_hidden()
    api("SetDlqConfig", queue=queue, config={"maxEntries": 1})
    ids = [api.push(queue, maxAttempts=1) for _ in range(4)]
    api("PULLB", queue=queue, count=4)
    for job_id in ids:
        api("FAIL", id=job_id, error="the bank is away")
    for path in (f"/queues/{queue}", f"/dlq/{queue}", "/dlq"):
        visitor.go(path)
        expect(note).to_contain_text("dead letters were dropped")
        expect(note).to_have_class("dropped bad")
        if path != "/dlq":  # there those of other queues count, too
            expect(note).to_contain_text("3 dead letters were dropped: 3 as there were more than are kept.")
    assert visitor.overflow() <= 0
    visitor.go(f"/jobs/{ids[0]}")
    expect(page.locator(".empty")).to_contain_text("there were more than 1 (max_entries)")
    expect(page.locator(".empty")).to_contain_text("its error: the bank is away")
    visitor.go(f"/dlq/{queue}")
    expect(page.get_by_label("Dead letters", exact=True).locator("tbody tr")).to_have_count(1)
    act(page, "Retry all 1")
    act(page, "Retry")
    toast(page, "1 job back in the queue; 3 had been dropped before")


def test_encrypted_jobs_say_so(visit: Visit, shop: Server, api: Api) -> None:
    codec = Codec(encryption=Encryption({"k1": b"k" * 32}, hash_key=b"h" * 32))
    with Queue(fresh_queue(), host=shop.host, port=shop.port, codec=codec) as queue:
        handle = queue.add("report", {"name": "Ada"}, max_attempts=1)
        handle.log("about Ada")
        api("PULL", queue=queue.name)
        handle.fail("Ada is unknown")
        page = visit(shop).go(f"/jobs/{handle.id}")
        expect(page.locator(".json").first).to_contain_text('"encrypted with key k1 (AES-GCM), 26 B"')
        expect(page.locator(".error.big")).to_have_text("[encrypted with key k1 (AES-GCM), 31 B]")
        expect(page.locator("main")).to_contain_text("[encrypted with key k1 (AES-GCM), 26 B]")
        expect(page.locator("main")).not_to_contain_text("$encoded")
        page.goto(page.url.partition("/jobs/")[0] + f"/queues/{queue.name}?state=failed")
        expect(page.locator("tbody").last).to_contain_text("encrypted with key k1 (AES-GCM)")
        expect(page.locator("main")).not_to_contain_text("$encoded")


def test_encrypted_data_is_not_edited_away(visit: Visit, shop: Server) -> None:
    codec = Codec(encryption=Encryption({"k1": b"k" * 32}, hash_key=b"h" * 32))
    with Queue(fresh_queue(), host=shop.host, port=shop.port, codec=codec) as queue:
        handle = queue.add("report", {"name": "Ada"}, delay=600_000)
        page = visit(shop).go(f"/jobs/{handle.id}")
        act(page, "Data")
        toast(page, "only a program with its codec can change it")
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert handle.job().data == {"name": "Ada"}
