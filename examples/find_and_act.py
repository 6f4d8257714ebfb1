"""A bad hour is over: find what failed in it, look at one job, and run them all again."""

from bunqueue import NewJob, Queue

with Queue("payments", embedded=True) as queue:
    for number in range(6):
        queue.add(
            "charge", {"order": {"id": number, "total": 20 * number}}, tags=["eu" if number % 2 else "us"]
        )
    while taken := queue.pull():  # the payment provider is down
        queue.handle(taken.job.id).fail("connection refused", unrecoverable=True)
    queue.add_bulk([NewJob("refund", {"order": {"id": number}}) for number in range(3)])

    page = queue.find(state="failed", error="refused", where="data.order.total >= 60", limit=2)
    print("found:", [job.data["order"]["id"] for job in page], "and more:", page.cursor is not None)

    dry = queue.retry_found(error="refused", tag="eu", dry_run=True)
    print("a dry run:", dry.changed, "would run again")
    done = queue.retry_found(error="refused", tag="eu")
    print("run again:", done.changed)

    moved = queue.move_found("refunds", name="refund", where="data.order.id != 1")
    print("moved:", moved.changed, "left alone:", moved.skipped)
    print("left in payments:", queue.count_found(state="waiting"))

# Output:
# found: [5, 4] and more: True
# a dry run: 3 would run again
# run again: 3
# moved: 2 left alone: {}
# left in payments: 4
