"""Jobs that the server cannot read, and a key that is replaced while jobs wait."""

import asyncio

from bunqueue import AsyncQueue, Bunqueue, Codec, Compression, Encryption, new_key

old, new, hash_key = new_key(), new_key(), new_key()  # in a program, load them with your other secrets


def app_with(keys: dict[str, str]) -> Bunqueue:
    codec = Codec(compression=Compression(), encryption=Encryption(keys, hash_key=hash_key))
    return Bunqueue("patients", codec=codec, embedded=True)


async def main() -> None:
    before = app_with({"2026-05": old})
    waiting = await before.add_async("report", {"name": "Ada", "findings": ["fever"] * 500})

    async with AsyncQueue("patients", embedded=True) as somebody:  # without the key
        job = await somebody.handle(waiting.id).job()
        print(job.data["$encoded"].rpartition(",")[0])

    after = app_with({"2026-11": new, "2026-05": old})  # the first one encrypts, all decrypt

    @after.job(unique=True)
    async def report(name: str, findings: list[str]) -> str:
        return f"{name}: {len(findings)} findings"

    async with after:  # a worker, as long as this block lasts
        print(await report.handle_async(waiting.id).result(timeout=10_000))
        first, again = await report.add_async("Eve", []), await report.add_async("Eve", [])
        print(await first.result(timeout=10_000), again.created)

    async with AsyncQueue("patients", embedded=True) as somebody:
        job = await somebody.handle(waiting.id).job()
        print(job.result["$encoded"])
    await before.close_async()
    await after.close_async()


asyncio.run(main())

# Output:
# encrypted with key 2026-05 (AES-GCM), compressed (zstd)
# Ada: 500 findings
# Eve: 0 findings False
# encrypted with key 2026-11 (AES-GCM), 34 B
