"""Reads the login of the tables' object store from Airflow.

Each task and each request of the page reads it anew, so a rotated key takes effect at once. It goes to the clients of
the object store and into the environment of the Spark driver, and never to a log, an argument, XCom or a Spark setting.
"""

import os

from airflow.sdk import Connection
from airflow.sdk.exceptions import AirflowNotFoundException

from ackline import connection_variable
from ackline.audit.object_store import CONNECTION, is_remote, options_of, options_of_connection, use_options
from ackline.errors import ConfigError
from ackline.paths import audit_root


def use_audit_connection() -> dict[str, str] | None:
    """Makes this process reach the object store of the tables by the connection that ACKLINE_AUDIT_CONNECTION names.

    Without that variable the environment has the login. Returns the options of the object store; None if the tables are
    on a disk. Raises ConfigError if the connection is not defined or can't be used.
    """
    root, name = audit_root(), os.environ.get(CONNECTION)
    if not is_remote(root):
        return None
    if name:
        try:
            connection = Connection.get(name)
        except AirflowNotFoundException:
            raise ConfigError(
                f"the Airflow connection {name}, which {CONNECTION} names, is not defined", key=CONNECTION
            ) from None
        fields = connection_variable.Connection(
            connection.conn_type, connection.login, connection.password, connection.extra_dejson
        )
        use_options(options_of_connection(name, fields))
    return options_of(root)
