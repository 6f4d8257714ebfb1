"""Commands of workflows: steps, signals, suspension, retries, undo, and what is shown of them."""
