"""From a task of Airflow to the audit page of its pipeline."""

from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from ackline.airflow.operators import PlanOperator, ReplayOperator, SettleOperator

DAG_PREFIX = "replay__"
PAGE = "/ackline"
"""Where Airflow mounts the page, below its own path."""


def page_path() -> str:
    """The path of the page in a browser: Airflow may be served below a path of its own."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/") + PAGE + "/"


class AuditLink(BaseOperatorLink):
    """The button `Audit` on the three tasks."""

    name = "Audit"
    operators = [PlanOperator, ReplayOperator, SettleOperator]  # noqa: RUF012 - declared so by Airflow

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The page of the pipeline, on the server that Airflow's pages come from."""
        return f"{page_path()}pipelines/{ti_key.dag_id.removeprefix(DAG_PREFIX)}"
