"""A queue in a file of your own program: no server, and nothing is lost when the program ends."""

import asyncio
import tempfile
from pathlib import Path

from bunqueue import Bunqueue


def make_app(path: Path) -> Bunqueue:
    app = Bunqueue("notes", embedded=True, data_path=path)

    @app.job
    async def note(text: str) -> str:
        return text.upper()

    return app


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"

        first = make_app(path)
        handle = await first.add_async("note", {"text": "remember the milk"})
        await first.close_async()  # the program ends here, say

        second = make_app(path)  # and starts again
        async with second:
            found = second.async_queue.handle(handle.id)
            print(await found.result(timeout=10_000))


asyncio.run(main())

# Output:
# REMEMBER THE MILK
