"""Rows that steps emit for output tables: checked, staged, kept while records are in flight, and published."""
