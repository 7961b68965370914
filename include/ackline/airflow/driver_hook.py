"""The Spark driver beside a replay task: the hook that starts it, its settings, its environment, and how it ended.

The module imports the provider's operator and hook without opening a socket. The provider imports urllib3, which binds
a socket to find out whether the machine has IPv6. A DAG file must open no socket, because Airflow parses it every few
seconds. So urllib3 gets the answer of Python's own `socket.has_ipv6`.
"""

import json
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowNotFoundException

import ackline
from ackline.airflow.driver import CONFIGURATION, FATAL, KAFKA_CONFIG, STORE_OPTIONS, TASK
from ackline.errors import ConfigError
from ackline.pipeline.folder import handlers_folder
from ackline.spark.master import MASTER, check_master, is_local
from ackline.tables.lease import ProcessIdentity

_probed = "urllib3.util.connection" in sys.modules
_has_ipv6, socket.has_ipv6 = socket.has_ipv6, False
try:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
finally:
    socket.has_ipv6 = _has_ipv6
if not _probed and "urllib3.util.connection" in sys.modules:
    sys.modules["urllib3.util.connection"].HAS_IPV6 = _has_ipv6  # type: ignore[attr-defined]

__all__ = ["SparkSubmitHook", "SparkSubmitOperator"]


_logger = logging.getLogger(__name__)
SPARK_CONNECTION = "spark_default"


def raise_for_exit_status(hook: SparkSubmitHook | None, error: AirflowException, name: str) -> NoReturn:
    """Raises AirflowFailException for an exit status that would be the same next time, else the error itself."""
    if isinstance(hook, DriverHook) and hook.exit_status in (CONFIGURATION, FATAL):
        # The line in which the driver named the cause, out of all that spark-submit printed.
        lines = [line.strip() for line in str(error).splitlines() if line.strip().startswith("ackline: ")]
        raise AirflowFailException(lines[-1] if lines else "replay failed; see the log above") from None
    if isinstance(hook, DriverHook) and (hook.exit_status is None or hook.exit_status < 0 or hook.exit_status > 128):
        # The driver died of a signal, so its own error could not name the way out of a turn that kills each driver.
        _logger.warning(
            "the driver was killed; if each retry ends so, `ackline void %s --reason …` closes the turn", name
        )
    raise error


class DriverHook(SparkSubmitHook):
    """The provider's hook, for a driver beside the task that has its own environment.

    Only that process gets the environment. The provider would pass it as visible arguments to YARN and Kubernetes, and
    would copy Airflow's own secrets into it. Raises ConfigError for deploy mode `cluster` and for Spark Connect.
    """

    def __init__(self, environment: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self._connection["deploy_mode"] == "cluster":
            raise ConfigError(
                f"the Airflow connection {SPARK_CONNECTION} has deploy mode `cluster`, in which the Kafka password "
                f"would travel as an argument: set it to `client`; executors run on the cluster in both modes",
                key="deploy-mode",
            )
        master = check_master(self._connection["master"], f"the Airflow connection {SPARK_CONNECTION}")
        # The driver needs the master before it has a Spark context, to choose the settings of its session.
        self._environment = {**environment, MASTER: master}
        self._conf = driver_settings(master)

    @classmethod
    def get_connection(cls, conn_id: str) -> Connection:
        """Returns the connection; a local master if it is not defined, for which the provider would take YARN."""
        try:
            return super().get_connection(conn_id)
        except AirflowNotFoundException:
            return Connection(conn_id=conn_id, conn_type="spark", host="local[*]")

    def submit(self, application: str = "", **kwargs: Any) -> str | None:
        """Run the driver until it ends. Raises AirflowException if its exit status is not 0."""
        return super().submit(application, env=self._environment, **kwargs)

    @property
    def exit_status(self) -> int | None:
        """The exit status of the driver; None before it has ended."""
        return None if self._submit_sp is None else self._submit_sp.returncode


def driver_settings(master: str) -> dict[str, str]:
    """Returns the Spark settings of the driver: a quiet log, with a local master ports on loopback only, and with a
    standalone master the address in its network, as the command `ackline run` sets it."""
    from ackline.spark.master import address_towards

    log4j2 = Path(ackline.__file__).parent / "spark" / "log4j2.properties"
    settings = {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j2.as_uri()} -XX:+UseParallelGC",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.catalogImplementation": "in-memory",
    }
    if is_local(master):
        settings |= {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    elif address := address_towards(master):
        settings["spark.driver.host"] = address
    return settings


_AIRFLOW_VARIABLE = re.compile(r"_*AIRFLOW", re.IGNORECASE)


def driver_environment(
    connection: Mapping[str, Any] | None, store_options: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Returns the environment of the driver: that of the task without AIRFLOW variables, which hold secrets.

    The Kafka connection and the options of the object store are added; the driver removes both when it starts.
    """
    kept = {name: value for name, value in os.environ.items() if not _AIRFLOW_VARIABLE.match(name)}
    folders = [str(handlers_folder()), *filter(None, [kept.get("PYTHONPATH")])]
    # spark-submit is beside the interpreter. A scheduler may not have it on its PATH.
    commands = [os.path.dirname(sys.executable), kept.get("PATH", os.defpath)]
    kept |= {
        KAFKA_CONFIG: json.dumps(connection),
        STORE_OPTIONS: json.dumps(store_options),
        TASK: str(ProcessIdentity.of(os.getpid())),
        "PATH": os.pathsep.join(commands),
        "PYTHONPATH": os.pathsep.join(folders),
    }
    kept.setdefault("PYSPARK_PYTHON", sys.executable)
    kept.setdefault("PYSPARK_DRIVER_PYTHON", kept["PYSPARK_PYTHON"])
    return kept
