"""The link from an Airflow task to the audit page of its pipeline."""

from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from ackline.airflow.operators import PlanOperator, ReplayOperator, SettleOperator

DAG_PREFIX = "replay__"
PAGE = "/ackline"
"""The path at which Airflow mounts the page, below its own base path."""


def page_path() -> str:
    """Returns the path of the page in a browser. Airflow itself may be served below a path."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/") + PAGE + "/"


class AuditLink(BaseOperatorLink):
    """The link `Audit` on the three tasks."""

    name = "Audit"
    operators = [PlanOperator, ReplayOperator, SettleOperator]  # noqa: RUF012 - declared so by Airflow

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the page of the pipeline, on the server of Airflow's own pages."""
        return f"{page_path()}pipelines/{ti_key.dag_id.removeprefix(DAG_PREFIX)}"
