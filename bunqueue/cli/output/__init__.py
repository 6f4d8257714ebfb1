"""What a person reads on the terminal: tables, progress, formats and errors."""
