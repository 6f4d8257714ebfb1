"""An agent that calls tools until it knows the answer or its budget is spent. Nothing is paid for twice."""

import asyncio
from dataclasses import dataclass, field

from bunqueue import Bunqueue, Flow, Retry, current_step

app = Bunqueue("agents", embedded=True)


@dataclass
class Thought:
    tool: str  # "answer" when it is done
    input: str
    cents: int


async def think(messages: list[str]) -> Thought:
    """A real one calls a model."""
    plan = [
        Thought("search", "weather in Turin", 3),
        Thought("read", "forecast", 4),
        Thought("answer", "sunny", 2),
    ]
    return plan[min(len(messages) // 2, 2)]


async def search(what: str) -> str:
    return f"found: {what}"


async def read(what: str) -> str:
    """A long step: it saves its progress, so a new run continues from there."""
    step = current_step()
    pages: list[str] = step.cursor or []
    while len(pages) < 3:
        pages = [*pages, f"page {len(pages) + 1} of {what}"]
        await step.save(pages)
    return f"read {len(pages)} pages"


TOOLS = {"search": search, "read": read}


@dataclass
class Answer:
    text: str
    cents: int
    tools: list[str] = field(default_factory=list)


@app.workflow
async def agent(flow: Flow, question: str, budget_cents: int) -> Answer:
    messages, answer = [question], Answer("", 0)
    while answer.cents < budget_cents:
        thought = await flow.step(
            "think", think, messages, retry=Retry(1_000, max_attempts=5), timeout=60_000
        )
        answer.cents += thought.cents
        flow.state = {"spent": answer.cents, "next": thought.tool}
        if thought.tool == "answer":
            answer.text = thought.input
            return answer
        answer.tools.append(thought.tool)
        found = await flow.step(thought.tool, TOOLS[thought.tool], thought.input)
        messages = [*messages, f"{thought.tool}: {thought.input}", found]
    answer.text = "the budget is spent"
    return answer


async def main() -> None:
    async with app:
        for budget in (100, 5):
            handle = await agent.start_async("Shall I take an umbrella?", budget)
            print(await handle.result(timeout=20_000))
            print([step.name for step in await handle.history()])


asyncio.run(main())

# Output:
# Answer(text='sunny', cents=9, tools=['search', 'read'])
# ['think', 'search', 'think#2', 'read', 'think#3']
# Answer(text='the budget is spent', cents=7, tools=['search', 'read'])
# ['think', 'search', 'think#2', 'read']
