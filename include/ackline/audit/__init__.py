"""The three Delta tables: their schemas, the ledger's fenced commits to them, and the queries of the audit table."""
