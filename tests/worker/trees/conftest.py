"""The folder of the tests of handler isolation, for isolated trees."""

from tests.worker.isolation.conftest import folder

__all__ = ["folder"]
