"""Writes the outcomes of a Spark task to Parquet files, and names those files in the task's manifest."""
