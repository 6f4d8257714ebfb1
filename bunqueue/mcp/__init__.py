"""A server of the Model Context Protocol: assistants use the commands of a bunqueue server as tools.

It is a client of that server, like any other, and may do what its token may.  Needs ``pip install
'bunqueue[mcp]'``; docs/mcp.md has all of it.
"""
