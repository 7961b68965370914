"""Ackline replays Kafka topics in bounded batches and records the outcome of every record.

This module exports what a handler needs. docs/architecture.md describes the other modules.
"""

from ackline.handler import Dead, Emit, Fail, Hold, InFlight, Record, Skip, Tuple, arrow_handler, column_handler

__all__ = ["Dead", "Emit", "Fail", "Hold", "InFlight", "Record", "Skip", "Tuple", "arrow_handler", "column_handler"]
__version__ = "0.2.0"
