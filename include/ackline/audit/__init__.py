"""Questions to the tables: rows of the audit table, the history of a lane, and SQL. Read-only."""

import ackline.delta  # noqa: F401 - first, because it has pyarrow import pandas later
