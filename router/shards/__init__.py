"""The processes of the shards on this host, and the links to them."""
