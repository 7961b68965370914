"""The plugin of Airflow: the page below /ackline, its menu entry, its tabs on DAGs and runs, and its link on each task.

The package registers it by an entry point, so an Airflow that has the package installed has the page.
"""

from airflow.plugins_manager import AirflowPlugin

from ackline.airflow.dags import PAGE, AuditLink, external_views
from ackline.ui.app import page


class AcklinePlugin(AirflowPlugin):
    """Registers the page, its views and its links. Airflow reads these attributes."""

    name = "ackline"
    fastapi_apps = [{"app": page, "url_prefix": PAGE, "name": "Ackline"}]  # noqa: RUF012
    external_views = external_views()
    operator_extra_links = [AuditLink()]  # noqa: RUF012
