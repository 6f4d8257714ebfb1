"""Codecs: what programs give and get is compressed and encrypted between them and the server.

`codec.py` has the options, `envelope.py` the form in which encoded values travel, `outgoing.py` says which
fields of commands carry data, `incoming.py` opens what is in replies, `transport.py` puts both around a way
to an engine. Nothing else in the client knows of it, but for what makes keys of arguments (`secret_of`).
"""
