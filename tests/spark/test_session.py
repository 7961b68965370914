"""The session that a command or a driver opens, as a process of its own."""

import pytest

from tests.spark.lab import run_script

pytestmark = pytest.mark.real

SCRIPT = """
import signal
from ackline.spark.session import open_session

def of_the_command(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, of_the_command)
session = open_session()
print(signal.getsignal(signal.SIGINT) is of_the_command)
session.stop()
"""


def test_a_session_leaves_the_handling_of_ctrl_c_as_it_was() -> None:
    """pyspark's own handler calls the JVM in the middle of another call: both then fail, or wait for ever."""
    done = run_script(SCRIPT, ACKLINE_SPARK_MASTER="local[1]")
    assert done.stdout.split() == ["True"], done.stderr
