"""Where things are, as the environment says."""

import pytest

from ackline.paths import audit_root, pipelines_folder, project_root


def test_an_empty_variable_is_none_and_does_not_make_the_project_itself_the_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACKLINE_AUDIT", "")
    monkeypatch.setenv("ACKLINE_PIPELINES", "")
    assert audit_root() == str(project_root() / ".ackline/audit")
    assert pipelines_folder() == project_root() / "include/pipelines"
