"""The audit page below /ackline in Airflow: where pipelines stand, and what became of a record. It only reads."""
