"""The commands, one module a noun. What several use stands in `framework` or `output`."""
