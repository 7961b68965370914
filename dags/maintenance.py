"""Makes the DAG `ackline_maintenance`, which keeps the tables of all pipelines quick."""

from ackline.airflow.operate import maintenance_dag

maintenance = maintenance_dag(__file__)
