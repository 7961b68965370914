"""Which Spark master a job runs on, which masters are refused, and the address where executors reach the driver.

Importing this loads no Spark, because commands and DAGs check the master first.
"""

import os
import re
import socket

from ackline.errors import ConfigError

MASTER = "ACKLINE_SPARK_MASTER"
"""The variable that names the master of the command, and that the Airflow task sets for its driver."""

_LOCAL = re.compile(r"local(-cluster)?(\[.*\])?")
_CONNECT = ("sc://", "spark_connect://", "spark-connect://")


def is_local(master: str) -> bool:
    """Returns whether the driver and all executors of this master are on one machine."""
    return _LOCAL.fullmatch(master) is not None


def master_of_environment() -> str:
    """Returns the master that ACKLINE_SPARK_MASTER names, `local[*]` without it.

    Raises ConfigError if it names Spark Connect, or if SPARK_REMOTE does, with which pyspark would use Spark Connect.
    """
    if remote := os.environ.get("SPARK_REMOTE"):
        check_master(remote if remote.startswith(_CONNECT) else f"sc://{remote}", "SPARK_REMOTE")
    return check_master(os.environ.get(MASTER) or "local[*]", MASTER)


def check_master(master: str, source: str) -> str:
    """Returns the master. Raises ConfigError for Spark Connect; `source` is where the master is named.

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
