"""Commands for workflows: steps, signals, suspension, retries, undo, and views."""
