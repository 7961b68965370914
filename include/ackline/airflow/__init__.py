"""Airflow: DAGs from pipeline files, the operators of the three steps, and the Spark driver of replay."""
