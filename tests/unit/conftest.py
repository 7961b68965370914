"""Fixtures that several unit tests share."""

from pathlib import Path

import pytest

from tests.unit.pipeline_files import Write, writer


@pytest.fixture
def write_file(tmp_path: Path) -> Write:
    """Writes pipeline files into `tmp_path`."""
    return writer(tmp_path)
