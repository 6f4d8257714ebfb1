"""What every command uses: shared options, values, completion and sessions."""
