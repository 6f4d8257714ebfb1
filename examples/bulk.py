"""Add thousands of jobs in one go, and work them fifty at a time.

A bulk is added as a whole or not at all. Plain functions, as here, run in threads.
"""

import threading

from bunqueue import ActiveJob, NewJob, Queue, Worker

TOTAL = 2_000
finished = threading.Semaphore(0)


def square(job: ActiveJob) -> int:
    return job.data["number"] ** 2


with Queue("squares", embedded=True) as queue:
    handles = queue.add_bulk(NewJob("square", {"number": number}) for number in range(TOTAL))
    print(f"added {len(handles)}, waiting {queue.counts().waiting}")

    worker = Worker("squares", square, concurrency=50, embedded=True)
    worker_thread = threading.Thread(target=worker.run_forever)
    worker_thread.start()

    print(handles[-1].wait())
