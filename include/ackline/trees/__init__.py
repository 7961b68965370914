"""Tuple trees over Spark: the steps of a pipeline, and the acker that finds which trees are complete."""
