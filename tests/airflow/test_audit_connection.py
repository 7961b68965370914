"""The login of the object store, from an Airflow connection to the driver's environment."""

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ackline.airflow.connections import use_audit_connection
from ackline.airflow.driver import STORE_OPTIONS
from ackline.airflow.driver_hook import driver_environment
from ackline.errors import ConfigError
from ackline.tables.object_store import options_of, use_options

CANARY = "canary-of-the-secret-key"
FIELDS = {"conn_type": "aws", "login": "key", "password": CANARY, "extra": {"region_name": "eu-west-1"}}
OPTIONS = {"aws_access_key_id": "key", "aws_secret_access_key": CANARY, "aws_region": "eu-west-1"}


@pytest.fixture(autouse=True)
def _own_options(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ACKLINE_AUDIT", "s3://bucket/audit")
    monkeypatch.setenv("ACKLINE_AUDIT_CONNECTION", "store")
    yield
    use_options(None)


def test_an_airflow_connection_is_used_by_the_whole_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(FIELDS))
    assert use_audit_connection() == OPTIONS
    assert options_of("s3://bucket/audit/orders/plans") == OPTIONS


def test_a_connection_that_is_not_defined_is_named() -> None:
    with pytest.raises(ConfigError, match="the Airflow connection store, which ACKLINE_AUDIT_CONNECTION names"):
        use_audit_connection()


def test_tables_on_a_disk_need_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", "/mnt/audit")
    assert use_audit_connection() is None


def test_i13_the_login_reaches_the_driver_in_one_variable_that_it_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(FIELDS))
    environment = driver_environment({"bootstrap.servers": "b:1"}, use_audit_connection())
    assert [name for name, value in environment.items() if CANARY in value] == [STORE_OPTIONS]
    script = """
import os, ackline.airflow.driver as driver
from ackline.tables.object_store import use_options, options_of
def replay(name, run_id, connection, store_options, *_):
    import json
    use_options(json.loads(store_options))
    return f"{len(options_of('s3://b/x'))} options, {'ACKLINE_STORE_OPTIONS' in os.environ}"
driver.take_turns = replay
driver.end_with_task = lambda task: None
driver.main(["orders", "--run-id", "r"])
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "3 options, False"
