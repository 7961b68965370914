"""The command `ackline`: everything the DAGs do, without Airflow, on the same three steps."""

from ackline.cli.app import main

__all__ = ["main"]
