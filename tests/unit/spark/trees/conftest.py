"""The folder of the tests of handler isolation, for isolated trees."""

from tests.unit.spark.isolation.conftest import folder

__all__ = ["folder"]
