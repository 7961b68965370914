"""The Delta adapter, on delta-rs: the tables of a pipeline, their fenced commits, their upkeep, and questions to
them.
"""
