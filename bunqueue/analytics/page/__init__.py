"""The report as one HTML file: what it says, its charts, how it looks.  Knows rows of tables, not Spark."""
