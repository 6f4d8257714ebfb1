"""Worker processes that `bunqueue worker` keeps running."""
