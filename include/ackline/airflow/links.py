"""The links from Airflow's pages to the page of a pipeline."""

from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from airflow.configuration import conf
from airflow.sdk import BaseOperatorLink

from ackline.airflow.operators import PlanOperator, ReplayOperator, SettleOperator

DAG_PREFIX = "replay__"
DAG_PREFIXES = (DAG_PREFIX, "backfill__", "operate__")
"""The prefixes of all DAGs of a pipeline."""
PAGE = "/ackline"
"""The path at which Airflow mounts the page, below its own base path."""


def page_path() -> str:
    """Returns the path of the page in a browser. Airflow itself may be served below a path."""
    return urlsplit(conf.get("api", "base_url", fallback="/")).path.rstrip("/") + PAGE + "/"


def pipeline_of_dag(dag_id: str) -> str | None:
    """Returns the pipeline of a DAG; None for a DAG that is not Ackline's."""
    return next((dag_id.removeprefix(prefix) for prefix in DAG_PREFIXES if dag_id.startswith(prefix)), None)


def external_views() -> list[dict[str, str]]:
    """Returns the views that Airflow shows in frames: one in its navigation, and a tab of each DAG and DAG run.

    Airflow replaces DAG_ID and RUN_ID. It shows the tabs of all DAGs; for a DAG that is not Ackline's, the page states
    that it has nothing.
    """
    page = page_path()
    return [
        {"name": "Ackline", "href": page, "destination": "nav", "category": "browse", "url_route": "ackline"},
        {"name": "Ackline", "href": f"{page}dags/{{DAG_ID}}", "destination": "dag", "url_route": "ackline_dag"},
        {"name": "Ackline", "href": f"{page}dags/{{DAG_ID}}/runs/{{RUN_ID}}", "destination": "dag_run",
         "url_route": "ackline_run"},
    ]  # fmt: skip


class AuditLink(BaseOperatorLink):
    """The link `Audit` on the tasks: the turns that the task's run has settled."""

    name = "Audit"
    operators = [PlanOperator, ReplayOperator, SettleOperator]  # noqa: RUF012 - declared so by Airflow

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Returns the page of the run, on the server of Airflow's own pages."""
        name = ti_key.dag_id.removeprefix(DAG_PREFIX)
        return f"{page_path()}pipelines/{quote(name, safe='')}/run?{urlencode({'run_id': ti_key.run_id})}"
