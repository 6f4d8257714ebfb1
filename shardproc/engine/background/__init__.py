"""Work that no command asked for: retention, forgetting old pushes, whether workers can be heard."""
