"""A nightly import, started by a schedule. It saves a cursor as it goes, and resumes there after a crash."""

import asyncio

from bunqueue import Bunqueue, Flow, Retry, current_step

app = Bunqueue("imports", embedded=True)

ROWS = [f"row {number}" for number in range(10_000)]  # the source
TARGET: dict[str, int] = {}  # the destination
broken = True


async def import_rows(size: int) -> int:
    """Rows after the last save may be imported twice: a key for each row makes that harmless."""
    global broken
    step = current_step()
    done = step.cursor or 0
    while rows := ROWS[done : done + size]:
        if done == 4_000 and broken:
            broken = False
            raise ConnectionError("the source is away")
        TARGET.update({row: done for row in rows})
        done += len(rows)
        await step.save(done)  # the next attempt, here or in another process, continues from here
    print(f"attempt {step.attempt} ended with row {done}")
    return done


@app.workflow
async def nightly(flow: Flow, size: int = 1_000) -> str:
    count = await flow.step("import", import_rows, size, retry=Retry(50, max_attempts=20))
    await flow.progress(90, "imported")
    total = await flow.step("check", lambda: len(TARGET))
    return f"{count} rows imported, {total} are there"


app.add_schedule(nightly.job(), "0 2 * * *", name="nightly", prevent_overlap=True)


async def main() -> None:
    async with app:
        handle = await app.run_schedule_async("nightly")  # now, instead of at 2 o'clock
        print(await handle.result(timeout=20_000))


asyncio.run(main())

# Output:
# attempt 2 ended with row 10000
# 10000 rows imported, 10000 are there
