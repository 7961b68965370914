"""The code of a project that a task needs beside the handler: listener, retry class, partition filter."""

import importlib
import sys
from pathlib import Path
from typing import cast

import pytest
from airflow.sdk import Context

from ackline.airflow.operators import opened
from ackline.pipeline import load
from tests.dags.project import Project

CODE = """
from ackline.listener import Listener

class Own(Listener):
    pass

class Policy:
    def next_attempt(self, attempts, handled_at, error_class, seed):
        return None

def chosen(topic, partition):
    return True
"""


def test_each_task_imports_the_projects_code_in_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """settle runs where neither plan nor replay has made the project's folder importable."""
    project = Project(tmp_path, "127.0.0.1:1")
    for variable, value in project.environment.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    kafka: dict[str, object] = {"connection": "kafka_default", "group_id": "g", "topics": ["orders"]}
    retry = {"class": "own_code:Policy"}
    kafka = {**kafka, "partition_filter": "own_code:chosen"}
    file = project.write("orders", "orders", kafka=kafka, listener="own_code:Own", retry=retry)
    (project.include / "own_code.py").write_text(CODE)
    importlib.invalidate_caches()
    with opened(load(file), cast(Context, {"run_id": "manual__1"})) as parts:
        assert parts.run_id == "manual__1"
