"""Makes the fixtures of tests/e2e available here."""

from tests.e2e.fixtures import in_process, lab, spark, spark_lab

__all__ = ["in_process", "lab", "spark", "spark_lab"]
