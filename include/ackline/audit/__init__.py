"""The three Delta tables: their schemas, the fenced commits of the ledger, their maintenance, and queries."""
