"""The fixtures of the tests here; pytest finds them by these names."""

from tests.e2e.fixtures import lab, spark

__all__ = ["lab", "spark"]
