"""Questions to the tables: rows of the audit table, the history of a lane, and SQL. Read-only."""
