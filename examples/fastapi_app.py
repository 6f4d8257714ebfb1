"""A FastAPI application with a queue, and, for development, the worker in the same process.

    pip install 'bunqueue[fastapi]' uvicorn
    uvicorn examples.fastapi_app:app

With a server, omit `embedded=True`, and run the worker in a process of its own:
`bunqueue worker` or a script that calls `Worker(...).run_forever()`.
"""

from typing import Annotated, Any

from fastapi import Depends, FastAPI

from bunqueue import ActiveJob, AsyncQueue, Worker
from bunqueue.integrations.fastapi import Lifespan

emails = AsyncQueue("emails", embedded=True)


async def send(job: ActiveJob) -> str:
    return f"sent to {job.data['to']}"


app = FastAPI(lifespan=Lifespan(emails, Worker("emails", send, embedded=True)))


def email_queue() -> AsyncQueue:
    """A dependency, so that tests may override it."""
    return emails


Emails = Annotated[AsyncQueue, Depends(email_queue)]


@app.post("/sign-up")
async def sign_up(address: str, emails: Emails) -> dict[str, str]:
    job = await emails.add("welcome", {"to": address})
    return {"job": job.id}


@app.get("/jobs/{job_id}")
async def look(job_id: str, emails: Emails) -> dict[str, Any]:
    return {"state": await emails.get_state(job_id), "result": await emails.get_result(job_id)}


if __name__ == "__main__":  # a few requests without an HTTP server
    import time

    from fastapi.testclient import TestClient

    with TestClient(app) as client:
        job_id = client.post("/sign-up", params={"address": "ada@example.com"}).json()["job"]
        while (answer := client.get(f"/jobs/{job_id}").json())["state"] != "completed":
            time.sleep(0.01)
        print(answer)
