"""`bunqueue reshard`: turns a data folder for M shards into one for N, while no server runs.

New files are made beside the old ones, which stay unchanged until the new ones are whole and on disk; then
these take their place. Whenever this is interrupted, there is one valid set of files, and running it again
finishes it. The SQL is in `shardproc.storage.transfer`.
"""
