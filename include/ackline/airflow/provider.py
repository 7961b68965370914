"""What Airflow's list of providers shows of the package."""

from typing import Any


def provider_info() -> dict[str, Any]:
    """Returns the description of the package, in the form that Airflow requires of providers."""
    return {
        "package-name": "ackline",
        "name": "Ackline",
        "description": "Replays Kafka in bounded batches with Spark and Delta, and never loses track of a record",
    }
