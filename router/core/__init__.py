"""What the router decides: no input or output, no event loop, no clock."""
