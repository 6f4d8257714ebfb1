"""`bunqueue reshard`: a data folder that was made for M shards becomes one for N, while no server runs.

New files are made beside the old ones, which stay as they are until the new ones are whole and on disk; then
these take their place.  Whatever ends this at whatever moment, there is one valid set of files, and running
it again finishes it.  SQL stands in `shardproc.storage.transfer`.
"""
