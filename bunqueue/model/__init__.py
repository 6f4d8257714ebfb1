"""The words of the domain: plain data and pure functions, shared by every process."""
