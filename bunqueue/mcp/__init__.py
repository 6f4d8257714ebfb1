"""A server of the Model Context Protocol: assistants use the commands of a bunqueue server as tools.

It is an ordinary client of that server, and may do what its token allows.  Needs ``pip install
'bunqueue[mcp]'``; see docs/mcp.md.
"""
