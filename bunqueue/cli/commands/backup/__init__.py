"""Commands for backups of data folders."""
