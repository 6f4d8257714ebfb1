"""Every Python process of a server under test loads this at its start, as its folder stands first on
PYTHONPATH; see `support.crashes`.  Shards are copies of what the router has loaded, so they have it, too."""

import os
import sys

if "CRASH_PLAN" in os.environ and "router" in sys.orig_argv:
    import crash_shard

    from router import supervisor

    crash_shard.install()
    supervisor.LAST_DELAY_S = supervisor.FIRST_DELAY_S  # shards die so often here that they would wait long
