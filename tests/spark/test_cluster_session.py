"""A session on a cluster does not start unprotected."""

import pytest

from tests.spark.lab import run_script

pytestmark = pytest.mark.real

SCRIPT = """
from ackline.errors import AcklineError
from ackline.spark.session import open_session
try:
    open_session()
except AcklineError as error:
    print(type(error).__name__, error)
"""


def test_a_standalone_master_without_a_secret_is_refused_with_the_way_out() -> None:
    """No connection is tried: without the secret, Kafka's password would go over the network as it is."""
    done = run_script(SCRIPT, ACKLINE_SPARK_MASTER="spark://127.0.0.1:9", SPARK_CONF_DIR="/nowhere")
    assert done.stdout.startswith("ConfigError the master spark://127.0.0.1:9 needs `spark.authenticate.secret`")
    assert "write `spark: {encryption: none}` into the pipeline file" in done.stdout
