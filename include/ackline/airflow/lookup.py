"""`python -m ackline.airflow.lookup ID` prints a connection of Airflow as JSON, for `ackline.forms.connections`.

It looks where a task looks: as a worker does, in the secrets backend and the environment, and then as Airflow's server
does, in the database too. Standard output gets the one object `{"found": …}`, null if no place has the connection. It
is a pipe: the object holds secrets.
"""

import json
import os
import sys
from typing import Any


def main(connection: str) -> None:
    """Print the connection with this id. Raises what Airflow raises if the lookup fails."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # Airflow logs to standard output
    print(json.dumps({"found": find(connection)}), file=answers, flush=True)


def find(connection: str) -> dict[str, Any] | None:
    """Returns the fields of a connection; None if Airflow does not have it."""
    from airflow.sdk import Connection
    from airflow.sdk.exceptions import AirflowNotFoundException

    # Without this variable Airflow looks where a worker does; with it, as in its own commands, in the database too.
    for context in ("", "server"):
        os.environ["_AIRFLOW_PROCESS_CONTEXT"] = context
        try:
            found = Connection.get(connection)
        except AirflowNotFoundException:
            continue
        return {
            "conn_type": found.conn_type, "host": found.host, "port": found.port, "login": found.login,
            "password": found.password, "extra": found.extra_dejson,
        }  # fmt: skip
    return None


if __name__ == "__main__":
    main(sys.argv[1])
