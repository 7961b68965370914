"""An auth manager under which the user `viewer` may read all DAGs but one."""

from typing import Any

from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

HIDDEN = "replay__payments"


class PartialAuthManager(SimpleAuthManager):
    """Airflow's simple auth manager, with one DAG hidden from the viewer."""

    def is_authorized_dag(self, *, method: Any, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        """Returns whether a user may do something with a DAG."""
        if user.get_name() == "viewer" and details is not None and details.id == HIDDEN:
            return False
        return super().is_authorized_dag(method=method, user=user, access_entity=access_entity, details=details)
