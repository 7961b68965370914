"""The session of a driver: its master, its settings on this machine and on a cluster, and the code that it ships."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.sql.connect.client import DefaultChannelBuilder

from ackline.cli.options import check_spark
from ackline.errors import ConfigError
from ackline.forms.connections import find_connection, without_airflow
from ackline.local.processes import save
from ackline.pipeline.blocks import SparkBlock
from ackline.spark.connect import _warn_of_environment
from ackline.spark.daemon import main
from ackline.spark.jars import PACKAGES, cache_folder, locked
from ackline.spark.master import (
    DEV_SERVER,
    MASTER,
    ConnectServer,
    SavedServer,
    check_master,
    chosen_master,
    connect_server,
    is_local,
    shown,
)
from ackline.spark.session import session_settings
from ackline.spark.settings import DAEMON, ENCRYPTION, REQUIRED_SETTINGS, build_archive, data_beside
from tests.e2e.lab import Spark
from tests.spark.lab import run_script


def test_a_master_is_local_if_all_executors_are_on_this_machine() -> None:
    local = ("local", "local[2]", "local[*]", "local[2,4]", "local-cluster[2,1,1024]")
    assert all(is_local(master) for master in local)
    assert not any(is_local(master) for master in ("spark://localhost:7077", "yarn", "k8s://https://h", "localhost"))


@pytest.fixture(autouse=True)
def _shared_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", "/mnt/audit")


def test_the_variable_names_the_master_or_the_connection_does_as_in_airflow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a container of docker-compose.yaml, the command runs on the cluster on which the DAGs run."""
    monkeypatch.delenv(MASTER, raising=False)
    monkeypatch.setattr("ackline.spark.master.dev_spark_folder", lambda: tmp_path)  # no server is there
    assert str(chosen_master()) == "local[*] (the connection spark_default is not defined)"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "spark://master:7077"}')
    assert str(chosen_master()) == "spark://master:7077 (the connection spark_default)"
    monkeypatch.setenv(MASTER, "spark://cluster:7077")
    assert str(chosen_master()) == "spark://cluster:7077 (ACKLINE_SPARK_MASTER)"


def test_the_command_uses_the_server_of_dev_spark_where_it_listens_and_shows_no_token(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The name of the server is saved for its owner; a file that a killed server has left names none."""
    monkeypatch.delenv(MASTER, raising=False)
    monkeypatch.setattr("ackline.spark.master.dev_spark_folder", lambda: tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        (tmp_path / DEV_SERVER).write_text(json.dumps({"port": port, "pid": 1, "started": 1, "token": "t-4711"}))
        master = chosen_master()
        assert master.url == f"sc://localhost:{port}/;token=t-4711"
        assert "4711" not in f"{master} {master!r}"
    assert chosen_master().url == "local[*]"


@pytest.mark.parametrize(
    ("connection", "master"),
    [
        ("spark://master:7077", "spark://master:7077"),
        ("k8s://https%3A%2F%2Fhost:443", "k8s://https://host:443"),
        ("spark://local%5B2%5D", "local[2]"),
        ('{"conn_type": "spark", "host": "yarn"}', "yarn"),
        ('{"conn_type": "spark", "host": "k8s://https://host", "port": 443}', "k8s://https://host:443"),
        ('{"conn_type": "spark", "host": "master", "port": 7077}', "spark://master:7077"),
    ],
)
def test_the_connection_means_the_master_that_the_provider_of_airflow_makes_of_it(
    connection: str, master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ackline.airflow.driver import Secrets
    from ackline.airflow.driver_hook import DriverHook

    monkeypatch.delenv(MASTER, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    assert chosen_master().url == master
    if not master.startswith("k8s"):  # for which the provider wants its packages of Kubernetes
        assert DriverHook(Secrets(), conn_id="spark_default")._environment[MASTER] == master


@pytest.mark.parametrize(("variable", "words"), [("SPARK_HOME", "is no Spark"), ("JAVA_HOME", "no Java at")])
def test_in_airflow_another_spark_and_a_missing_java_are_refused_before_a_plan(
    variable: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from ackline.airflow.driver import Secrets
    from ackline.airflow.driver_hook import DriverHook

    monkeypatch.delenv(MASTER, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ConfigError, match=words):
        DriverHook(Secrets(), conn_id="spark_default")


def test_a_client_of_a_server_looks_at_no_spark_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    monkeypatch.setenv(MASTER, "sc://localhost:15002")
    assert chosen_master().url == "sc://localhost:15002"


def test_a_connection_without_a_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MASTER, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark"}')
    with pytest.raises(ConfigError, match="spark_default has no host: write the master there"):
        chosen_master()


def test_deploy_mode_cluster_is_refused_by_the_command_and_doctor_as_by_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MASTER, raising=False)
    connection = {"conn_type": "spark", "host": "spark://master:7077", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(ConfigError, match="set it to `client`"):
        chosen_master()


@pytest.mark.parametrize("master", ["spark://cluster:7077", "yarn", "k8s://https://host"])
def test_the_default_folder_of_the_tables_is_refused_with_executors_on_other_hosts(
    master: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host would have tables of its own."""
    assert check_master(master, MASTER) == master
    monkeypatch.setenv("ACKLINE_AUDIT", "")
    with pytest.raises(ConfigError, match=f"ACKLINE_AUDIT is not set.*executors of {master} .* are on other hosts"):
        check_master(master, MASTER)
    assert check_master("local[*]", MASTER) == "local[*]"


@pytest.mark.parametrize(
    ("connection", "url"),
    [
        ("sc://host:15002", "sc://host:15002"),
        ("sc://host", "sc://host:15002"),
        ("spark-connect://host:15003", "sc://host:15003"),
        ("spark-connect://me:abc@host:15003?use_ssl=True", "sc://host:15003/;user_id=me;token=abc;use_ssl=true"),
        ('{"conn_type": "spark", "host": "sc://host", "port": 15002}', "sc://host:15002"),
        ('{"conn_type": "spark", "host": "sc://host:15002/;token=abc"}', "sc://host:15002/;token=abc"),
        ('{"conn_type": "spark_connect", "host": "host", "password": "abc"}', "sc://host:15002/;token=abc"),
    ],
)
def test_the_connection_may_name_a_spark_connect_server_as_for_the_provider(
    connection: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The token shows nowhere. In Airflow, the driver is no spark-submit, and gets the token through its pipe."""
    from ackline.airflow.driver import Secrets
    from ackline.airflow.driver_hook import DriverHook

    monkeypatch.delenv(MASTER, raising=False)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", connection)
    master = chosen_master()
    assert master.url == url
    assert str(master) == f"{url.partition('/;')[0]} (the connection spark_default)"
    assert "abc" not in repr(master)
    hook = DriverHook(Secrets(), conn_id="spark_default", application_args=["orders"])
    assert hook._build_spark_submit_command("replay.py") == [sys.executable, "replay.py", "orders"]
    assert hook._secrets.spark_master == url
    assert hook._environment[MASTER] == url.partition("/;")[0]
    assert not [name for name, value in hook._environment.items() if "abc" in value and "PYTEST" not in name]


def test_a_server_on_another_host_needs_shared_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", "")
    assert check_master("sc://localhost:15002", MASTER) == "sc://localhost:15002"
    with pytest.raises(ConfigError, match=r"executors of sc://host:15002 .* are on other hosts") as refused:
        check_master("sc://host/;token=abc", MASTER)
    assert "abc" not in str(refused.value)


@pytest.mark.parametrize(("address", "url"), [
    ("sc://host:1/;token=c2VjcmV0==", "sc://host:1/;token=c2VjcmV0%3D%3D"),
    ("SC://host:1/;token=secret", "sc://host:1/;token=secret"),
    ("sc://host/;use_ssl=true;x-tenant=secret%3Ba", "sc://host:15002/;use_ssl=true;x-tenant=secret%3Ba"),
])  # fmt: skip
def test_an_address_of_a_server_is_parsed_once_and_a_token_shows_nowhere(address: str, url: str) -> None:
    """pyspark takes the address that follows from it."""
    server = connect_server(address)
    assert server is not None
    assert server.url == url
    assert shown(address) == url.partition("/;")[0]
    assert "secret" not in repr(server)
    DefaultChannelBuilder(server.url)


@pytest.mark.parametrize("address", [
    "sc://host:1/;token=secret;more", "sc://:15002/;token=secret", "scs://host/;token=secret", "sc:host;token=secret",
    "sc://me:secret@host", "sc://host;token=secret", "sc://host/?token=secret", "sc://host:x/;token=secret",
    "sc://host/;tokn=secret", "sc://host/;token=", "spark://u:secret@host:7077", "spark://spark_master:7077",
    "mesos://host:1;token=secret", "Yarn", "",
])  # fmt: skip
def test_an_address_that_names_no_master_is_refused_without_its_token(address: str) -> None:
    with pytest.raises(ConfigError, match=MASTER) as refused:
        check_master(address, MASTER)
    assert "secret" not in f"{refused.value} {shown(address)}"


def test_what_another_project_sets_for_its_spark_is_refused_or_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each let a run store a plan that nothing could handle. PYSPARK_DRIVER_PYTHON may be `jupyter`."""
    from ackline.airflow.driver_hook import driver_environment

    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "jupyter")
    assert driver_environment()["PYSPARK_DRIVER_PYTHON"] == sys.executable
    check_spark()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="no Java"):
        check_spark()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"SPARK_HOME=.* is no Spark .*: unset it"):
        check_spark()
    monkeypatch.setenv("SPARK_HOME", pyspark.__path__[0])
    monkeypatch.setenv("ACKLINE_SPARK_MASTER", "sc://localhost")
    check_spark()


def test_a_user_without_a_home_folder_is_asked_for_the_folder_of_the_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "ACKLINE_JARS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    with pytest.raises(ConfigError, match="no home folder for the JARs: set HOME, or ACKLINE_JARS"):
        cache_folder()
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "")
    assert find_connection("nowhere", "kafka.connection") is None


def test_the_variable_by_which_pyspark_chooses_spark_connect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "local[*]")
    with pytest.raises(ConfigError, match="SPARK_REMOTE"):
        chosen_master()


NOTHING = SparkBlock()


def test_the_jars_come_from_the_lock_from_maven_or_from_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never those of the test broker."""

    def jars() -> dict[str, str]:
        settings = session_settings("local[2]", NOTHING, submitted=False)
        return {name: value for name, value in settings.items() if name.startswith("spark.jars")}

    names = {Path(path).name for path in jars()["spark.jars"].split(",")}
    assert {name.partition("-0-10")[0].rpartition("-")[0] for name in names if "-0-10" in name} == {
        "spark-sql", "spark-token-provider",
    }  # fmt: skip
    assert not any(name.startswith("kafka_") for name in names)
    monkeypatch.setenv("ACKLINE_JARS", PACKAGES)
    [kafka_source] = [jar for jar in locked() if jar.module.startswith("spark-sql-kafka")]
    package = f"org.apache.spark:{kafka_source.module}:{kafka_source.revision}"
    assert jars() == {"spark.jars.packages": package}
    monkeypatch.setenv("ACKLINE_IVY_SETTINGS", "/etc/ivysettings.xml")
    assert jars() == {"spark.jars.packages": package, "spark.jars.ivySettings": "/etc/ivysettings.xml"}
    monkeypatch.setenv("ACKLINE_JARS", "cluster")
    assert jars() == {}


@pytest.fixture
def master() -> str:
    return "spark://127.0.0.1:7077"


def test_on_this_machine_the_driver_listens_on_the_loopback_and_nothing_is_encrypted() -> None:
    settings = session_settings("local[2]", NOTHING, submitted=False)
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert not settings.keys() & ENCRYPTION.keys()
    assert "spark.executorEnv.PYTHONPATH" in settings


def test_on_a_cluster_the_driver_has_the_address_of_its_route_to_the_master() -> None:
    """Executors of other machines connect to it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route:
        route.connect(("192.0.2.1", 7077))
        address = route.getsockname()[0]
    settings = session_settings("spark://192.0.2.1:7077", NOTHING, submitted=False)
    assert (settings["spark.driver.host"], "spark.driver.bindAddress" in settings) == (address, False)
    assert "spark.executorEnv.PYTHONPATH" not in settings


def test_ackline_s_daemon_forks_the_workers_of_this_machine_unless_the_file_names_another() -> None:
    """On a cluster a daemon may lack Ackline: its archive comes after the fork."""
    [name] = DAEMON
    assert session_settings("local[2]", NOTHING, submitted=False)[name] == "ackline.spark.daemon"
    theirs = SparkBlock(conf={name: "their.daemon"})
    assert session_settings("local[2]", theirs, submitted=False)[name] == "their.daemon"
    assert name not in session_settings("spark://192.0.2.1:7077", NOTHING, submitted=False)


def test_nothing_is_imported_before_the_fork_of_workers_with_a_memory_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit counts what a worker has mapped. The imports map so much that a limit of a GiB ended each worker."""
    done = list[str]()
    monkeypatch.setenv("PYSPARK_EXECUTOR_MEMORY_MB", "1024")
    monkeypatch.setattr("ackline.spark.daemon.gc.freeze", lambda: done.append("imported"))
    monkeypatch.setattr("ackline.spark.daemon.daemon.manager", lambda: done.append("forked"))
    main()
    assert done == ["forked"]


@pytest.mark.real
def test_each_python_worker_draws_its_own_numbers_and_finds_ackline_imported(spark: Spark) -> None:
    """A fork copies NumPy's generator. A process that a handler forks keeps the seed that the handler has set."""

    def draw(_: Any) -> Iterator[Any]:
        import numpy as np

        imported = "ackline.worker.run" in sys.modules
        own = np.random.random()
        np.random.seed(7)
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, np.random.bytes(8))
            os._exit(0)
        yield imported, own, os.read(read, 8), np.random.bytes(8)

    tasks = spark().sparkContext.parallelize(range(2), 2).barrier()  # both at once, so in two workers
    drawn = tasks.mapPartitions(draw).collect()
    assert [imported for imported, *_ in drawn] == [True, True]
    assert len({own for _, own, *_ in drawn}) == 2
    assert len({number for *_, in_fork, after in drawn for number in (in_fork, after)}) == 1


@pytest.mark.parametrize("cluster", ["yarn", "k8s://https://host", "spark://no-such-host.invalid:7077"])
def test_where_no_route_is_known_spark_chooses_the_address(cluster: str) -> None:
    assert "spark.driver.host" not in session_settings(cluster, NOTHING, submitted=False)


def test_the_file_may_name_the_driver_s_address(master: str) -> None:
    block = SparkBlock(conf={"spark.driver.host": "driver.example"})
    assert session_settings(master, block, submitted=False)["spark.driver.host"] == "driver.example"


@pytest.mark.parametrize("submitted", [True, False])
def test_on_a_cluster_tasks_are_authenticated_and_encrypted_unless_the_file_waives_it(
    master: str, submitted: bool
) -> None:
    """Kafka's password travels in them."""
    settings = session_settings(master, NOTHING, submitted=submitted)
    assert ENCRYPTION.items() <= settings.items()
    waived = session_settings(master, SparkBlock(encryption="none"), submitted=submitted)
    assert not waived.keys() & ENCRYPTION.keys()


def test_what_the_rules_need_is_set_last(master: str) -> None:
    block = SparkBlock.model_construct(
        driver_memory=None, executor_memory=None, executor_cores=None, archives=[], encryption="required",
        conf={"spark.speculation": "true", "spark.authenticate": "false"},
    )  # fmt: skip
    settings = session_settings(master, block, submitted=True)
    assert (REQUIRED_SETTINGS | ENCRYPTION).items() <= settings.items()


def test_the_block_decides_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_SPARK_MEMORY", "3g")
    block = SparkBlock(driver_memory="2g", executor_memory="4g")
    settings = session_settings("local[2]", block, submitted=False)
    assert (settings["spark.driver.memory"], settings["spark.executor.memory"]) == ("2g", "4g")
    assert session_settings("local[2]", NOTHING, submitted=False)["spark.driver.memory"] == "3g"
    assert "spark.driver.memory" not in session_settings("local[2]", block, submitted=True)


def handlers(folder: Path) -> Path:
    for name in (
        "handlers/orders.py", "handlers/__init__.py", "top.py", "handlers/.env", "secrets.pem", "data.csv",
        ".git/hook.py", "venv/lib/x.py", "other/lib/y.py", "handlers/__pycache__/orders.cpython-311.pyc",
    ):  # fmt: skip
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("VALUE = 42\n")
    (folder / "other" / "pyvenv.cfg").write_text("")
    return folder


def test_it_holds_the_package_and_the_python_files_of_the_handlers_alone(tmp_path: Path) -> None:
    """No secret, no data and no virtual environment that lies beside the handlers leaves the machine."""
    names = ZipFile(build_archive(tmp_path / "a.zip", handlers(tmp_path / "project"))).namelist()
    assert {name for name in names if not name.startswith("ackline/")} == {
        "handlers/__init__.py", "handlers/orders.py", "top.py",
    }  # fmt: skip
    assert {"ackline/__init__.py", "ackline/worker/tasks.py"} <= set(names)
    assert not any("__pycache__" in name for name in names)


def test_the_data_files_of_the_handlers_are_those_beside_a_python_file_and_no_tables_of_runs(tmp_path: Path) -> None:
    """A session keeps what its handlers have read, so another file beside them makes another session."""
    for name in ("shop.py", "price.txt", ".env", "handlers/a.py", "handlers/data/x.csv", "out/table.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = data_beside(tmp_path)
    assert [line.split()[:2] for line in found] == [
        [str(tmp_path / name), str(len(name))] for name in ("handlers/data/x.csv", "price.txt")
    ]
    assert data_beside(tmp_path) == found
    (tmp_path / "price.txt").write_text("10")
    assert data_beside(tmp_path) != found


def test_a_run_names_the_variables_in_which_the_server_of_dev_spark_differs_and_shows_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its handlers have the environment of the server's start."""
    env = without_airflow(os.environ) | {"SHOP_URL": "then-4711", "GONE": "then-4711", "TERM": "other"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE) as server:
        save(tmp_path / DEV_SERVER, SavedServer(15002, server.pid, 1, "token-4711"))
        monkeypatch.setattr("ackline.spark.connect.dev_spark_folder", lambda: tmp_path)
        monkeypatch.setenv("SHOP_URL", "now-4711")
        for port in (15002, 15003):
            _warn_of_environment(ConnectServer("localhost", port))
        server.communicate(b"\n")
    [message] = caplog.messages
    assert " in GONE, SHOP_URL; `ackline dev down`" in message
    assert "4711" not in message


def test_equal_files_give_an_equal_archive(tmp_path: Path) -> None:
    folder = handlers(tmp_path / "project")
    first = build_archive(tmp_path / "a.zip", folder).read_bytes()
    os.utime(folder / "top.py", (1, 1))
    os.chmod(folder / "top.py", 0o600)
    assert build_archive(tmp_path / "b.zip", folder).read_bytes() == first


def test_a_python_without_the_project_imports_from_it(tmp_path: Path) -> None:
    archive = build_archive(tmp_path / "a.zip", handlers(tmp_path / "project"))
    code = "import sys; sys.path.insert(1, sys.argv[1]); import ackline.errors, top; print(ackline.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(archive)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(str(archive))


REFUSED = """
from ackline.errors import AcklineError
from ackline.spark.session import open_session
try:
    open_session()
except AcklineError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.real
def test_a_standalone_master_without_a_secret_is_refused_with_the_way_out() -> None:
    """No connection is tried: without the secret, Kafka's password would go over the network as it is."""
    done = run_script(REFUSED, ACKLINE_SPARK_MASTER="spark://127.0.0.1:9", SPARK_CONF_DIR="/nowhere")
    assert done.stdout.startswith("ConfigError the master spark://127.0.0.1:9 needs `spark.authenticate.secret`")
    assert "write `spark: {encryption: none}` into the pipeline file" in done.stdout


CTRL_C = """
import signal
from ackline.spark.session import open_session

def of_the_command(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGINT, of_the_command)
session = open_session()
print(signal.getsignal(signal.SIGINT) is of_the_command)
session.stop()
"""


@pytest.mark.real
def test_a_session_leaves_the_handling_of_ctrl_c_as_it_was() -> None:
    """pyspark's own handler calls the JVM in the middle of another call: both then fail, or wait for ever."""
    done = run_script(CTRL_C, ACKLINE_SPARK_MASTER="local[1]")
    assert done.stdout.split() == ["True"], done.stderr
