"""Ackline replays Kafka in bounded batches, and never loses track of a single record.

A handler needs only what is exported here; everything else has a module of its own, named in the README.
"""

from ackline.handler import Dead, Record, Skip, arrow_handler, column_handler

__all__ = ["Dead", "Record", "Skip", "arrow_handler", "column_handler"]
__version__ = "0.1.0"
