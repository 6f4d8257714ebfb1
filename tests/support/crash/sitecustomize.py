"""Every Python process of a server under test loads this at its start, as its folder stands first on
PYTHONPATH; see `support.crashes`."""

import os
import sys

if "CRASH_PLAN" in os.environ:
    if "shardproc" in sys.orig_argv:
        import crash_shard

        crash_shard.install()
    elif "router" in sys.orig_argv:
        from router import supervisor

        supervisor.LAST_DELAY_S = (
            supervisor.FIRST_DELAY_S
        )  # shards die so often here that they would wait long
