"""Where the folders are, by environment variables."""

import pytest

from ackline.errors import ConfigError
from ackline.pipeline.folder import audit_root, pipelines_folder, project_root


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a relative path it would make the project itself the folder of the tables."""
    monkeypatch.setenv("ACKLINE_AUDIT", "")
    monkeypatch.setenv("ACKLINE_PIPELINES", "")
    assert audit_root() == str(project_root() / ".ackline/audit")
    assert pipelines_folder() == project_root() / "include/pipelines"


@pytest.mark.parametrize(
    ("root", "expected"),
    [
        ("s3://bucket/audit/", "s3://bucket/audit"),
        ("s3a://bucket/audit", "s3://bucket/audit"),
        ("s3://bucket", "s3://bucket"),
        ("gs://bucket/audit", "gs://bucket/audit"),
        (
            "abfss://container@account.dfs.core.windows.net/audit",
            "abfss://container@account.dfs.core.windows.net/audit",
        ),
        ("file:///mnt/audit", "/mnt/audit"),
        ("/mnt/audit", "/mnt/audit"),
    ],
)
def test_the_audit_root_may_be_in_an_object_store(monkeypatch: pytest.MonkeyPatch, root: str, expected: str) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    assert audit_root() == expected


@pytest.mark.parametrize(
    ("root", "reason"),
    [
        ("s3://key:canary@bucket/audit", "holds a login"),
        ("s3://key:canary/with/slash@bucket/audit", "holds a login"),
        ("s3://canary@bucket/audit", "holds a login"),
        ("s3://bucket/audit?signature=canary", "a `\\?` or a `#`"),
        ("s3://bucket/audit#1", "a `\\?` or a `#`"),
        ("s3://", "names no bucket"),
        ("hdfs://bucket/audit", "Unknown scheme: hdfs"),
    ],
)
def test_a_uri_that_can_not_name_the_tables_is_refused(monkeypatch: pytest.MonkeyPatch, root: str, reason: str) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", root)
    with pytest.raises(ConfigError, match=f"ACKLINE_AUDIT=.* can't be used: .*{reason}") as refused:
        audit_root()
    assert "canary" not in str(refused.value)
