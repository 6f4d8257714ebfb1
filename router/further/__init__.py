"""Several routers of one host: the first one, which is the server's own process, and others beside it.

All of them accept clients at one port and talk to each shard of the host over a socket of their own, so
what a client asks of such a shard costs one router only.  What there is once on a host stays with the first:
the shards' processes, the links to other hosts of a cluster, the HTTP gateway, what shards say to each other,
the registry of workers, the answers about the whole server.  A client of another router that asks for such
gets its answer through the link between the two.

In the first router is `supervisor`, with an end of each link in `peer`; `process` and `first` are the other
end.
"""
