"""The options of an object store, by environment and by connection."""

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from ackline.delta.folder import Folder, prove_conditional_put
from ackline.delta.object_store import arrow_filesystem, options_of, use_options
from ackline.errors import ConfigError
from ackline.tables.layout import check_layout
from ackline.verify.read_tables import storage_options

ROOT = "s3://bucket/audit"
CANARY = "canary/of+the=secret"


@pytest.fixture(autouse=True)
def _own_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    use_options(None)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Names a connection `store`, which a test defines."""
    monkeypatch.setenv("ACKLINE_AUDIT_CONNECTION", "store")
    return monkeypatch


def define(connection: pytest.MonkeyPatch, **fields: object) -> None:
    connection.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", **fields}))


def test_a_folder_on_the_disk_has_no_options(connection: pytest.MonkeyPatch) -> None:
    assert options_of("/mnt/audit") == {}
    assert isinstance(arrow_filesystem("/mnt/audit")[0], pafs.LocalFileSystem)


@pytest.mark.parametrize("endpoint", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"])
def test_the_environment_holds_the_options(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, name.lower())
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    monkeypatch.setenv(endpoint, "https://store:9000")
    assert options_of(ROOT) == {
        "aws_access_key_id": "aws_access_key_id",
        "aws_secret_access_key": "aws_secret_access_key",
        "aws_session_token": "aws_session_token",
        "aws_region": "eu-west-1",
        "aws_endpoint_url": "https://store:9000",
    }
    filesystem, base = arrow_filesystem(ROOT)
    assert (filesystem.region, base) == ("eu-west-1", "bucket/audit")


def test_the_endpoint_is_that_of_the_variable_that_delta_rs_obeys_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the checker, too, which reads the environment by itself."""
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.setenv(name, f"https://{name.lower()}")
        endpoints = [options["aws_endpoint_url"] for options in (options_of(ROOT), storage_options(ROOT))]
        assert endpoints == [f"https://{name.lower()}"] * 2


@pytest.mark.parametrize(
    ("extra", "variable"),
    [
        ({"endpoint_url": "https://store"}, "AWS_ENDPOINT_URL_S3"),
        ({}, "AWS_ENDPOINT_URL_S3"),
        ({}, "AWS_ENDPOINT_URL"),
        ({}, "AWS_ENDPOINT"),
    ],
)
def test_another_endpoint_in_the_environment_than_that_of_the_connection_is_refused(
    connection: pytest.MonkeyPatch, extra: dict[str, str], variable: str
) -> None:
    """delta-rs would obey the variable, and Arrow the connection."""
    define(connection, login="key", password="secret", extra=extra)
    connection.setenv(variable, "https://another")
    with pytest.raises(ConfigError, match=f"{variable} is set, and the object store has another endpoint") as refused:
        options_of(ROOT)
    assert refused.value.key == variable
    connection.setenv(variable, "https://store")
    if extra:
        assert options_of(ROOT)["aws_endpoint_url"] == "https://store"


def test_without_a_login_both_clients_find_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert options_of(ROOT) == {"aws_region": "eu-west-1"}


def test_a_profile_with_a_key_is_followed_and_no_other(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text("[nightly]\naws_access_key_id = key\naws_secret_access_key = a%b\n")
    (tmp_path / "config").write_text("[profile nightly]\nregion = eu-west-1\n[profile role]\nrole_arn = arn\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    assert options_of(ROOT) == {}
    monkeypatch.setenv("AWS_PROFILE", "nightly")
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "a%b"}
    assert options_of(ROOT) == keys | {"aws_region": "eu-west-1"}
    for name in ("role", "missing"):
        monkeypatch.setenv("AWS_PROFILE", name)
        with pytest.raises(ConfigError, match=f"AWS_PROFILE={name} has no access key"):
            options_of(ROOT)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps({"conn_type": "aws", "login": "key", "password": CANARY,
                    "extra": {"region_name": "eu-west-1", "endpoint_url": "http://h:1", "allow_http": True}}),
        json.dumps({"conn_type": "aws", "login": "key", "password": CANARY,
                    "extra": '{"region_name": "eu-west-1", "endpoint_url": "http://h:1", "allow_http": "true"}'}),
        "aws://key:canary%2Fof%2Bthe%3Dsecret@/?region_name=eu-west-1&endpoint_url=http%3A%2F%2Fh%3A1&allow_http=true",
    ],
)  # fmt: skip
def test_a_connection_holds_the_options_in_either_form(connection: pytest.MonkeyPatch, text: str) -> None:
    connection.setenv("AWS_REGION", "us-east-1")
    connection.setenv("AIRFLOW_CONN_STORE", text)
    assert options_of(ROOT) == {
        "aws_access_key_id": "key",
        "aws_secret_access_key": CANARY,
        "aws_region": "eu-west-1",
        "aws_endpoint_url": "http://h:1",
        "aws_allow_http": "true",
    }


def test_what_a_process_was_given_comes_first(connection: pytest.MonkeyPatch) -> None:
    """A Spark task uses the options of its driver, whatever its own machine has."""
    use_options({"aws_region": "eu-west-1"})
    assert options_of(ROOT) == {"aws_region": "eu-west-1"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (None, "AIRFLOW_CONN_STORE"),
        ({"conn_type": "wasb"}, "type wasb: only `aws` is supported"),
        ({"extra": {"role_arn": CANARY}}, "extra role_arn, which Ackline does not follow"),
        ({"login": "key"}, "only one of access key and secret key"),
        ({"extra": "[1]"}, "AIRFLOW_CONN_STORE is not a connection"),
        ({"extra": {"endpoint_url": "http://store:9000"}}, "http://store:9000 is not encrypted"),
        ({"extra": {"endpoint_url": "https://store/path"}}, "the endpoint of the object store must be"),
    ],
)
def test_a_connection_that_can_not_be_used_is_refused(
    connection: pytest.MonkeyPatch, fields: dict[str, object] | None, reason: str
) -> None:
    if fields is not None:
        define(connection, **fields)
    with pytest.raises(ConfigError, match=reason) as refused:
        options_of(ROOT)
    assert CANARY not in str(refused.value)


def test_a_token_of_the_environment_does_not_meet_the_key_of_a_connection(connection: pytest.MonkeyPatch) -> None:
    define(connection, login="key", password="secret")
    connection.setenv("AWS_SESSION_TOKEN", "of another key")
    with pytest.raises(ConfigError, match="AWS_SESSION_TOKEN is set, which belongs to another key"):
        options_of(ROOT)


@pytest.mark.parametrize(
    ("name", "value"),
    [("AWS_S3_ALLOW_UNSAFE_RENAME", "true"), ("AWS_S3_LOCKING_PROVIDER", "dynamodb"),
     ("AWS_CONDITIONAL_PUT", "disabled")],
)  # fmt: skip
def test_variables_that_turn_the_fences_off_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"{name} is set"):
        options_of(ROOT)


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("gs://bucket/x", "Google Cloud Storage"),
        ("az://container/x", "Azure Blob Storage"),
        ("abfss://container@account.dfs.core.windows.net/x", "Azure Blob Storage"),
    ],
)
def test_a_store_for_which_no_test_proves_the_fence_is_refused_by_name(uri: str, name: str) -> None:
    """Whatever opens the table: plan, doctor, the page, a task."""
    for call in (options_of, arrow_filesystem, Folder, prove_conditional_put, check_layout):
        with pytest.raises(ConfigError, match=rf"can't hold a table: it is in {name}, where .* `ackline doctor`"):
            call(uri)
