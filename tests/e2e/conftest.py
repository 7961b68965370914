"""The fixtures of these tests; pytest finds them by name."""

from tests.e2e.cluster_lab import machines, two_workers
from tests.e2e.fixtures import in_process, lab, spark, spark_lab
from tests.e2e.login_lab import secured

__all__ = ["in_process", "lab", "machines", "secured", "spark", "spark_lab", "two_workers"]
