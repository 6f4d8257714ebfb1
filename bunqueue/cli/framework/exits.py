"""Exit statuses: what scripts may rely on."""

from __future__ import annotations

DONE = 0
FAILED = 1
"""The server refused it, or it went wrong in a way that no other status names."""
USAGE = 2
"""Wrong flags, arguments or settings: repeating the command cannot help. Nothing was sent."""
NOT_FOUND = 3
"""There is no such job, schedule or webhook; no job to pull."""
NO_CONNECTION = 4
"""Nothing listens there, the certificate is not trusted, or the connection broke."""
TIMED_OUT = 5
"""It did not end, or answer, in the time given."""
NOT_ALLOWED = 6
"""The server refuses the token, or wants one."""
WRONG_STATE = 7
"""The job is in a state in which that cannot be done, or its lock is lost."""
NOT_COMPLETED = 8
"""The job that was waited for has ended, but did not complete."""
WRONG_FILES = 9
"""The files of a data folder do not belong together; nothing was changed."""
INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""
PIPE_CLOSED = 141
"""128 + SIGPIPE: whoever read the output wants no more of it."""
