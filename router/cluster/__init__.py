"""Several hosts that share the shards of one store: membership, ownership, and the links between the hosts.

This package is not concerned with what a host does with a shard that it owns: see `router.shards.supervisor`.
The log decides who owns a shard (`shardproc.replication.owner`); this package only decides which host tries.
"""
