"""The wire protocol, without I/O: frames, commands, replies, and the link between router and shards."""
