"""The report as one HTML file: its text, charts and style.  Knows rows of tables, not Spark."""
