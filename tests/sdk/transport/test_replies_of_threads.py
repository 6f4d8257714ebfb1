"""Threads of a new process that get their first replies at once."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from msgspec.msgpack import encode
from bunqueue.client.connection.replies import decode_reply
from bunqueue.protocol.commands import COMMANDS, core

job = {"id": "1", "queue": "q", "name": "n", "data": {}, "state": "waiting", "timestamp": 1, "createdAt": 1}
reply = encode({"ok": True, "jobs": [job], "job": job, "crons": [], "queues": [], "items": []})
ping = COMMANDS["Ping"].request()
kinds = {spec.reply for spec in COMMANDS.values()}
start = threading.Barrier(6)

def first() -> None:
    start.wait()
    for kind in kinds:
        try:
            decode_reply(reply, kind, ping, "here")
        except Exception:
            pass  # it has other fields

threads = [threading.Thread(target=first) for _ in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_none_ends_the_process() -> None:
    for _ in range(5):
        subprocess.run([sys.executable, "-c", PROGRAM], check=True)
