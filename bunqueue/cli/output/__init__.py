"""The output of commands: tables, progress, formats and errors."""
