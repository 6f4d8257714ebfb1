"""The trail: who changed what, kept in the data folder."""
