"""Makes the fixtures of tests/e2e available here."""

from tests.e2e.fixtures import lab, spark

__all__ = ["lab", "spark"]
