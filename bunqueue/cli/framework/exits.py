"""Exit statuses, which scripts may rely on."""

from __future__ import annotations

DONE = 0
FAILED = 1
"""The server refused the command, or there was an error that no other status covers."""
USAGE = 2
"""Wrong flags, arguments or settings: repeating the command does not help. Nothing was sent."""
NOT_FOUND = 3
"""The job, schedule or webhook does not exist, or there is no job to pull."""
NO_CONNECTION = 4
"""No server listens there, the certificate is not trusted, or the connection broke."""
TIMED_OUT = 5
"""The job did not end, or the server did not answer, in time."""
NOT_ALLOWED = 6
"""The server refuses the token, or needs one."""
WRONG_STATE = 7
"""The job's state does not permit this, or its lock is lost."""
NOT_COMPLETED = 8
"""The awaited job has ended, but did not complete."""
WRONG_FILES = 9
"""The files of a data folder do not belong together; nothing was changed."""
INTERRUPTED = 130
"""128 + SIGINT, as in shells."""
PIPE_CLOSED = 141
"""128 + SIGPIPE: the reader of the output closed the pipe."""
