"""The fixture of the Spark session; pytest finds it by name."""

from tests.e2e.fixtures import spark

__all__ = ["spark"]
