"""Which Spark master a job runs on, which masters are refused, and the address where executors reach the driver.

Importing this loads no Spark, because commands and DAGs check the master first.
"""

import os
import re
import socket
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from urllib.parse import quote, unquote

from ackline.errors import ConfigError
from ackline.forms.connections import Connection, find_connection
from ackline.pipeline.folder import check_audit_is_shared, project_root
from ackline.stored import Stored

MASTER = "ACKLINE_SPARK_MASTER"
"""The variable that names the master of the command, and that the Airflow task sets for its driver."""
SPARK_CONNECTION = "spark_default"
"""The connection that names the master, in Airflow and for the command."""

_LOCAL = re.compile(r"local(-cluster)?(\[.*\])?")
_CONNECT_SCHEME = re.compile(r"\s*(sc|scs|spark_connect|spark-connect):", re.IGNORECASE)
_CONNECT = re.compile(
    r"(?:sc|spark_connect|spark-connect)://(\[[0-9a-f:.]+\]|[\w.-]+)(?::([1-9]\d{0,4}))?(?:/|/;(.*))?", re.IGNORECASE
)
_PARAMETER = re.compile(r"token|use_ssl|user_id|user_agent|session_id|x-[a-z0-9-]+")
"""What the address of a server may set: what pyspark knows, and headers for a proxy before the server."""
CONNECT_PORT = 15002
"""The port of a Spark Connect server whose address names none."""
_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|\[?::1\]?")


@dataclass(frozen=True, slots=True)
class ConnectServer:
    """The address of a Spark Connect server, and how a client reaches it."""

    host: str
    port: int
    parameters: str = field(default="", repr=False)
    """What follows the address, such as `/;use_ssl=true;token=…`. It may hold a token."""

    def __str__(self) -> str:
        return f"sc://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The address for pyspark, with all parameters. It may hold a token."""
        return f"{self}{self.parameters}"

    @property
    def loopback(self) -> bool:
        """Whether the server listens on this machine, or a tunnel to it does."""
        return is_loopback(self.host)

    @property
    def encrypted(self) -> bool:
        """Whether the client connects by TLS. pyspark uses TLS with a token, too."""
        words = dict(word.partition("=")[::2] for word in self.parameters.lstrip("/").split(";"))
        return words.get("use_ssl", "").lower() == "true" or "token" in words


DEV_SERVER = "server.json"
"""The file in a server's folder that names the last server started there, for its owner alone."""


@dataclass(frozen=True, slots=True)
class SavedServer(Stored):
    """The last Spark Connect server started in a folder: its port, its process, when that started, and its token."""

    port: int
    pid: int
    started: int
    token: str = field(repr=False)

    @property
    def address(self) -> str:
        """Its address without the token."""
        return f"sc://localhost:{self.port}"


def dev_spark_folder() -> Path:
    """Returns the folder of the server of `ackline dev spark`."""
    return project_root() / ".ackline" / "spark"


def connect_server(master: str, source: str = MASTER) -> ConnectServer | None:
    """Returns the Spark Connect server that a master names; None for a master of another kind.

    Raises ConfigError for an address that is not `sc://HOST:PORT` with known parameters. The error shows nothing of
    the address, whose parts may be a token. pyspark would show it whole.
    """
    if not _CONNECT_SCHEME.match(master):
        return None
    found = _CONNECT.fullmatch(master)
    words = [word.partition("=") for word in filter(None, (found[3] or "").split(";"))] if found else []
    if found is None or not all(is_set and value and _PARAMETER.fullmatch(name) for name, is_set, value in words):
        raise ConfigError(
            f"{source} has an address of a Spark Connect server that can't be read: write sc://HOST:PORT, or with "
            f"parameters sc://HOST:PORT/;NAME=VALUE;NAME=VALUE. Their names are token, use_ssl, user_id, user_agent, "
            f"session_id and x-HEADER, and a `;` in a value is %3B",
            key=source,
        )
    # Quoted anew: pyspark refuses, and shows, an address with a value such as `c2VjcmV0==`.
    given = "".join(f";{name}={quote(unquote(value), safe='')}" for name, _, value in words)
    return ConnectServer(found[1], int(found[2] or CONNECT_PORT), given and f"/{given}")


def is_loopback(host: str) -> bool:
    """Returns whether a host is this machine, or the end of a tunnel on it."""
    return _LOOPBACK.fullmatch(host) is not None


def is_local(master: str) -> bool:
    """Returns whether the driver and all executors of this master are on one machine."""
    return _LOCAL.fullmatch(master) is not None


@dataclass(frozen=True, slots=True)
class Master:
    """A Spark master, and what has named it."""

    url: str = field(repr=False)
    """The address, which may hold the token of a Spark Connect server."""
    source: str

    def __str__(self) -> str:
        return f"{shown(self.url)} ({self.source})"


def shown(master: str) -> str:
    """Returns a master as text for messages, without parameters and a login, which may be secret. Never raises."""
    try:
        server = connect_server(master)
    except ConfigError:
        return "sc://***"
    return str(server or re.sub(r"(?<=://)[^/]*@", "", re.split("[?;]", master)[0]))


def _dev_server() -> Master | None:
    """Returns the server of `ackline dev spark`; None if none listens."""
    saved = SavedServer.read(dev_spark_folder() / DEV_SERVER)
    if saved is None:
        return None
    with socket.socket() as client:
        client.settimeout(1)
        if client.connect_ex(("127.0.0.1", saved.port)) != 0:
            return None
    return Master(f"{saved.address}/;token={saved.token}", "`ackline dev spark`")


def chosen_master() -> Master:
    """Returns the master of a job: that of ACKLINE_SPARK_MASTER, else that of the connection `spark_default`, else the
    server of `ackline dev spark` where one runs, else `local[*]`.

    A task of Airflow sets the variable for its driver, so that neither of them looks for another one. Raises
    ConfigError if SPARK_REMOTE is set, by which pyspark would choose a Spark Connect server of its own, and as
    `check_environment`; if the connection has no host, or deploy mode `cluster`; and if the executors are on other
    machines while ACKLINE_AUDIT is not set. Raises TransientError if Airflow does not answer for the connection.
    """
    if os.environ.get("SPARK_REMOTE"):
        raise ConfigError(
            f"SPARK_REMOTE is set, by which pyspark chooses a Spark Connect server: unset it, and name the server in "
            f"{MASTER} or in the connection {SPARK_CONNECTION}",
            key="SPARK_REMOTE",
        )
    master = _named_master()
    if connect_server(master.url) is None:
        check_environment()
    return master


def _named_master() -> Master:
    if named := os.environ.get(MASTER):
        return Master(check_master(named, MASTER), MASTER)
    connection = find_connection(SPARK_CONNECTION, SPARK_CONNECTION)
    if connection is None:
        return _dev_server() or Master("local[*]", f"the connection {SPARK_CONNECTION} is not defined")
    check_deploy_mode(connection.extra.get("deploy-mode"))
    source = f"the connection {SPARK_CONNECTION}"
    return Master(check_master(master_of(connection), source), source)


def check_environment() -> None:
    """Raises ConfigError for a variable of another project by which pyspark would start another Spark than its own."""
    home, version = os.environ.get("SPARK_HOME"), metadata.version("pyspark")
    if home and not any(Path(home, "jars").glob(f"spark-core_*-{version}.jar")):
        raise ConfigError(
            f"SPARK_HOME={home} is no Spark {version}, and pyspark would start it in place of its own: unset it",
            key="SPARK_HOME",
        )


def check_deploy_mode(mode: object) -> None:
    """Raises ConfigError for the deploy mode `cluster` of the connection `spark_default`."""
    if mode == "cluster":
        raise ConfigError(
            f"the Airflow connection {SPARK_CONNECTION} has deploy mode `cluster`, in which the Kafka password would "
            f"travel as an argument: set it to `client`; executors run on the cluster in both modes",
            key="deploy-mode",
        )


def master_of(connection: Connection) -> str:
    """Returns the master that a connection names, by the rules of Airflow's Spark provider: the host is the master or,
    in a connection that was written as a URI, its address, and the type is its scheme. Raises ConfigError without a
    host."""
    if not connection.host:
        raise ConfigError(
            f"the connection {SPARK_CONNECTION} has no host: write the master there, such as spark://HOST:PORT, "
            f"k8s://…, yarn or local[*], or a Spark Connect server, sc://HOST:PORT",
            key=SPARK_CONNECTION,
        )
    if connection.conn_type in _CONNECT_TYPES or connection.host.startswith("sc://"):
        return _server_of(connection)
    whole = connection.conn_type == "spark" and ("://" in connection.host or not connection.port)
    host = connection.host if whole else f"{connection.conn_type}://{connection.host}"
    return f"{host}:{connection.port}" if connection.port else host


_CONNECT_TYPES = ("sc", "spark_connect")
"""Types of connections to a Spark Connect server: its own scheme, and the type of Airflow's provider."""


def _server_of(connection: Connection) -> str:
    """Returns the address of a Spark Connect server. As in Airflow's provider, login and password are user and token,
    and `use_ssl` turns TLS on."""
    address = f"sc://{(connection.host or '').removeprefix('sc://')}"
    if connection.port:
        address = f"{address}:{connection.port}"
    words = {"user_id": connection.login, "token": connection.password}
    words["use_ssl"] = "true" if str(connection.extra.get("use_ssl", "")).lower() == "true" else None
    given = "".join(f";{name}={quote(value)}" for name, value in words.items() if value)
    joined = "" if not given or "/;" in address else "/"
    return f"{address}{joined}{given}"


def check_master(master: str, source: str) -> str:
    """Returns the master. Raises ConfigError for what Spark takes for none, before anything is planned, and for
    executors on other machines while ACKLINE_AUDIT is not set. `source` is where the master is named."""
    server = connect_server(master, source)
    if server is None and not _MASTER.fullmatch(master):
        raise ConfigError(
            f"{shown(master)} ({source}) is no Spark master: write local[*], spark://HOST:PORT, yarn, k8s://…, or "
            f"sc://HOST:PORT. A host has no `_`, which Java does not take in an address: write its IP address",
            key=source,
        )
    # The probe finds out whether a server at a local address has the same files.
    same_machine = server.loopback if server is not None else is_local(master)
    check_audit_is_shared(None if same_machine else f"the executors of {shown(master)} ({source}) are on other hosts")
    return server.url if server is not None else master


_HOST = r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])"
_MASTER = re.compile(rf"{_LOCAL.pattern}|yarn|k8s://\S+|spark://{_HOST}:\d+(?:,{_HOST}:\d+)*")
_STANDALONE = re.compile(r"spark://\[?([^,\]]+?)\]?:(\d+)")


def address_towards(master: str) -> str | None:
    """Returns this machine's address in the network of a standalone master, where its executors reach the driver. Spark
    itself takes the first address that the machine's name has, which may be of another network. None for another kind
    of master, and for one whose name does not resolve: Spark then chooses the address."""
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
