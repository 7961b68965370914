"""Adds to Airflow: the audit page below /ackline, its menu entry, and a link to it on each task."""

from airflow.plugins_manager import AirflowPlugin

from ackline.airflow.links import PAGE, AuditLink, page_path
from ackline.ui.mounted import page


class AcklinePlugin(AirflowPlugin):
    """Registers the page, its menu entry and the links. Airflow reads these attributes."""

    name = "ackline"
    fastapi_apps = [{"app": page, "url_prefix": PAGE, "name": "Ackline"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {"name": "Ackline", "href": page_path(), "destination": "nav", "category": "browse", "url_route": "ackline"}
    ]
    operator_extra_links = [AuditLink()]  # noqa: RUF012
