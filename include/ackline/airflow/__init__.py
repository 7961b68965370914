"""Airflow: DAGs from pipeline files, the operators of the three steps, and the Spark driver of replay."""

from importlib.util import find_spec

if find_spec("airflow") is None:
    raise ImportError('the DAGs of Ackline need Airflow 3.3 or later: pip install "ackline[airflow]"', name="airflow")
