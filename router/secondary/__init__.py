"""Several routers of one host: the first one, which is the server's own process, and the secondary ones.

All of them accept clients at one port, and each has its own socket to each shard of the host, so a command
for a local shard passes through one router only. Everything that exists once per host stays with the first
router: the shards' processes, the links to other hosts of a cluster, the HTTP gateway, messages between
shards, the registry of workers, the answers about the whole server. A client of a secondary router gets these
answers through the link between the two routers.

In the first router runs `supervisor`, with its end of each link in `peer`; `process` and `first_router` are
the other end.
"""
