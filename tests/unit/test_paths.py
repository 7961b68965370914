"""Where the folders are, by environment variables."""

import pytest

from ackline.paths import audit_root, pipelines_folder, project_root


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a relative path it would make the project itself the folder of the tables."""
    monkeypatch.setenv("ACKLINE_AUDIT", "")
    monkeypatch.setenv("ACKLINE_PIPELINES", "")
    assert audit_root() == str(project_root() / ".ackline/audit")
    assert pipelines_folder() == project_root() / "include/pipelines"
