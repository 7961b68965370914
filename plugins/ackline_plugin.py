"""Adds to Airflow: the page below /ackline, its menu entry, its tabs on DAGs and runs, and its link on each task."""

from airflow.plugins_manager import AirflowPlugin

from ackline.airflow.dags import PAGE, AuditLink, external_views
from ackline.ui.app import page


class AcklinePlugin(AirflowPlugin):
    """Registers the page, its views and its links. Airflow reads these attributes."""

    name = "ackline"
    fastapi_apps = [{"app": page, "url_prefix": PAGE, "name": "Ackline"}]  # noqa: RUF012
    external_views = external_views()
    operator_extra_links = [AuditLink()]  # noqa: RUF012
