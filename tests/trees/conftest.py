"""The lab that runs tasks in this process, and the folder of the tests of handler isolation."""

from tests.worker.conftest import tasks
from tests.worker.isolation.conftest import folder

__all__ = ["folder", "tasks"]
