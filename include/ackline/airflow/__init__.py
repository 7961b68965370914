"""Airflow: DAGs from pipeline files, the operators of the three steps, and the Spark driver of replay."""

from importlib.util import find_spec

NEEDED = (
    "the DAGs of Ackline need Airflow 3.3 or later with its providers for Spark and Kafka: "
    'pip install "ackline[airflow]" "apache-airflow==$(airflow version)"'
)
"""The text of the ImportError that a DAG file gets without the extra `airflow`."""

if find_spec("airflow") is None:
    raise ImportError(NEEDED, name="airflow")
