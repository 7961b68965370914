"""The DAG `ackline_maintenance`: it does every six hours what `ackline maintain` does.

Airflow parses its DAG file every few seconds, so the task imports what it needs when it runs.
"""

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, BaseOperator, Context, CronDataIntervalTimetable

from ackline.airflow.operators import RETRIES, airflow_errors
from ackline.pipeline.folder import audit_root

LISTED_TABLES = 10
"""Tables that XCom names. The log names all."""
SCHEDULE = "20 */6 * * *"
"""Every six hours: then a pipeline that runs every ten minutes does not get slower (`make bench`)."""


class MaintainOperator(BaseOperator):
    """Compacts, checkpoints and vacuums the tables of all pipelines."""

    ui_color = "#e8e3f3"

    def execute(self, context: Context) -> dict[str, Any]:
        """Maintain the tables. Returns totals, and the ten tables with the most files.

        Safe beside runs, and safe to repeat.
        """
        with airflow_errors():
            from ackline.airflow.connections import use_audit_connection
            from ackline.tables.maintenance import maintain

            use_audit_connection()
            tables = [asdict(maintained) for maintained in maintain(audit_root())]
        for table in tables:
            self.log.info("maintained: %s", table)
        most_files = sorted(tables, key=lambda table: table["files"], reverse=True)[:LISTED_TABLES]
        totals = {key: sum(table[key] for table in tables) for key in ("files", "compacted", "busy", "removed")}
        return {"tables": len(tables), **totals, "most_files": most_files}


def maintenance_dag(file: str) -> DAG:
    """Returns the maintenance DAG, for the DAG file `file`."""
    dag = DAG(
        dag_id="ackline_maintenance",
        schedule=CronDataIntervalTimetable(SCHEDULE, timezone="UTC"),
        start_date=datetime(2025, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        default_args=RETRIES,
        description="Compacts, checkpoints and vacuums the tables of all pipelines, output tables too",
        doc_md=(
            "Without this DAG every run gets a little slower each day. No row changes, and runs may go on meanwhile. "
            "It removes unused files after a week, and never those of an open turn. By hand: `ackline maintain`."
        ),
        tags={"ackline", "maintenance"},
        auto_register=False,
    )
    dag.fileloc = file
    MaintainOperator(task_id="maintain", dag=dag)
    return dag
