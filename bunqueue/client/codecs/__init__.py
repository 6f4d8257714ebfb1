"""Codecs: job data and results are compressed and encrypted between programs and the server.

`codec.py` has the options, `envelope.py` the format of encoded values. `outgoing.py` says which fields of
commands carry data, `incoming.py` decodes replies, and `transport.py` wraps both around a transport. The rest
of the client does not know about codecs, except the code that makes keys from arguments (`secret_of`).
"""
