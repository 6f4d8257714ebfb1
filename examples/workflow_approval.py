"""Somebody has to approve. The workflow holds no worker while it waits, and later asks somebody else."""

import asyncio
from dataclasses import dataclass

from bunqueue import Bunqueue, Flow

app = Bunqueue("expenses", embedded=True)


@dataclass
class Decision:
    by: str
    granted: bool


async def ask(manager: str, what: str) -> str:
    return f"asked {manager} about {what}"  # a mail with a link to a page that sends the signal


@app.workflow
async def expense(flow: Flow, what: str, patience_ms: float) -> str:
    await flow.step("ask", ask, "Ada", what)
    flow.state = {"waits for": "Ada"}  # handle.query() shows it
    decision = await flow.wait_for("decision", Decision, timeout=patience_ms, default=None)
    if decision is None:
        await flow.step("ask again", ask, "Bob", what)
        flow.state = {"waits for": "Bob"}
        decision = await flow.wait_for("decision", Decision, name="second decision")
    return f"{what}: {'yes' if decision.granted else 'no'}, says {decision.by}"


async def main() -> None:
    async with app:
        # Elsewhere: expense.handle("e-1"), or on the command line: bunqueue workflow signal e-1 decision
        quick = await expense.start_async("a desk", 60_000, id="e-1")
        await quick.signal("decision", Decision("Ada", granted=True))
        print(await quick.result(timeout=20_000))

        slow = await expense.start_async("a boat", 10, id="e-2")
        while await slow.query() != {"waits for": "Bob"}:  # noqa: ASYNC110 - a page would show it
            await asyncio.sleep(0.05)
        await slow.signal("decision", Decision("Bob", granted=False))
        print(await slow.result(timeout=20_000))
        print([step.name for step in await slow.history() if step.kind in ("step", "signal")])


asyncio.run(main())

# Output:
# a desk: yes, says Ada
# a boat: no, says Bob
# ['ask', 'decision', 'ask again', 'second decision']
