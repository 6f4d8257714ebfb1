"""What every command of the command line uses: shared options, values, completion and sessions."""
