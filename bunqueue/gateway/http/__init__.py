"""Requests and answers: access, bodies, commands as resources, status codes and connections."""
