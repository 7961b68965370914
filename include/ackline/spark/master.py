"""Which Spark master a job runs on, which masters are refused, and the address where executors reach the driver.

Importing this loads no Spark, because commands and DAGs check the master first.
"""

import os
import re
import socket
from dataclasses import dataclass

from ackline.errors import ConfigError
from ackline.pipeline.connections import Connection, find_connection
from ackline.pipeline.folder import check_audit_is_shared

MASTER = "ACKLINE_SPARK_MASTER"
"""The variable that names the master of the command, and that the Airflow task sets for its driver."""
SPARK_CONNECTION = "spark_default"
"""The connection that names the master, in Airflow and for the command."""

_LOCAL = re.compile(r"local(-cluster)?(\[.*\])?")
_CONNECT = ("sc://", "spark_connect://", "spark-connect://")


def is_local(master: str) -> bool:
    """Returns whether the driver and all executors of this master are on one machine."""
    return _LOCAL.fullmatch(master) is not None


@dataclass(frozen=True, slots=True)
class Master:
    """A Spark master, and what has named it."""

    url: str
    source: str

    def __str__(self) -> str:
        return f"{self.url} ({self.source})"


def chosen_master() -> Master:
    """Returns the master of a job: that of ACKLINE_SPARK_MASTER, else that of the connection `spark_default`, else
    `local[*]`.

    A task of Airflow sets the variable for its driver, so that neither of them looks for another one. Raises
    ConfigError if Spark Connect is named, also by SPARK_REMOTE, with which pyspark would use it; if the connection has
    no host; and if the executors are on other machines while ACKLINE_AUDIT is not set. Raises TransientError if Airflow
    can't be asked for the connection.
    """
    if remote := os.environ.get("SPARK_REMOTE"):
        check_master(remote if remote.startswith(_CONNECT) else f"sc://{remote}", "SPARK_REMOTE")
    if named := os.environ.get(MASTER):
        return Master(check_master(named, MASTER), MASTER)
    connection = find_connection(SPARK_CONNECTION, SPARK_CONNECTION)
    if connection is None:
        return Master("local[*]", f"the connection {SPARK_CONNECTION} is not defined")
    source = f"the connection {SPARK_CONNECTION}"
    return Master(check_master(master_of(connection), source), source)


def master_of(connection: Connection) -> str:
    """Returns the master that a connection names, by the rules of Airflow's Spark provider: the host is the master or,
    in a connection that was written as a URI, its address, and the type is its scheme. Raises ConfigError without a
    host."""
    if not connection.host:
        raise ConfigError(
            f"the connection {SPARK_CONNECTION} has no host: write the master there, such as spark://HOST:PORT, "
            f"k8s://…, yarn or local[*]",
            key=SPARK_CONNECTION,
        )
    whole = connection.conn_type == "spark" and ("://" in connection.host or not connection.port)
    host = connection.host if whole else f"{connection.conn_type}://{connection.host}"
    return f"{host}:{connection.port}" if connection.port else host


def check_master(master: str, source: str) -> str:
    """Returns the master. Raises ConfigError for Spark Connect, and for executors on other machines while ACKLINE_AUDIT
    is not set; `source` is where the master is named.

    A client of Spark Connect has no Spark context, through which Ackline ships the handlers, probes the executors and
    cancels its job.
    """
    if master.startswith(_CONNECT):
        address = re.split(r"[;@?]", master)[0].rstrip("/")  # a token may follow
        raise ConfigError(
            f"{source} names {address}, a Spark Connect server, where Ackline can't run: it ships the handlers and "
            "probes the executors through a Spark context. Name a master: spark://HOST:PORT, k8s://…, yarn or local[*]",
            key=source,
        )
    shown = master.partition("?")[0]
    check_audit_is_shared(None if is_local(master) else f"the executors of {shown} ({source}) are on other hosts")
    return master


_STANDALONE = re.compile(r"spark://\[?([^,\]]+?)\]?:(\d+)")


def address_towards(master: str) -> str | None:
    """Returns this machine's address in the network of a standalone master, where its executors reach the driver.

    Spark itself takes the first address that the machine's name has, which may be of another network. None for another
    kind of master, and for one whose name does not resolve: Spark then chooses the address.
    """
    standalone = _STANDALONE.match(master)
    if standalone is None:
        return None
    try:
        family, kind, _, _, address = socket.getaddrinfo(standalone[1], int(standalone[2]), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # of a datagram socket: chooses a route and sends nothing
            return str(probe.getsockname()[0])
    except OSError:
        return None
