"""Backups of data folders: made online and by pages, kept in a folder or a bucket, checked, and restored."""
