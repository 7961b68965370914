"""The fixtures of these tests; pytest finds them by name."""

from tests.e2e.cluster_lab import machines, two_workers
from tests.e2e.fixtures import lab, spark

__all__ = ["lab", "machines", "spark", "two_workers"]
