"""Several hosts that share the shards of one store: who is there, who owns what, and the links between them.

What a host does with a shard that it owns is no business of this room: see `router.supervisor`.  The log
decides who owns a shard (`shardproc.replication.owner`); here it is only decided who tries.
"""
