"""What Ackline adds to Airflow's pages: the audit page below /ackline, its place in the menu, a link on each task."""

from airflow.plugins_manager import AirflowPlugin

from ackline.airflow.links import PAGE, AuditLink, page_path
from ackline.ui.mounted import page


class AcklinePlugin(AirflowPlugin):
    """Read by Airflow."""

    name = "ackline"
    fastapi_apps = [{"app": page, "url_prefix": PAGE, "name": "Ackline"}]  # noqa: RUF012
    external_views = [  # noqa: RUF012
        {"name": "Ackline", "href": page_path(), "destination": "nav", "category": "browse", "url_route": "ackline"}
    ]
    operator_extra_links = [AuditLink()]  # noqa: RUF012
