"""The commands, one module per noun. Code that several commands use is in `framework` or `output`."""
