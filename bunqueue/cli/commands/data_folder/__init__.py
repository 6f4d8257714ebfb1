"""Commands for the files of a server: copy, repair, reshard."""
