import sys

from .process import main

if "--spare" in sys.argv:  # it has time, and every shard of a cluster has a store
    from .replication import process as _process  # noqa: F401

sys.exit(main())
