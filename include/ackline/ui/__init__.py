"""The audit page below /ackline in Airflow: the position of each pipeline, and the outcomes of a record. Read-only."""
