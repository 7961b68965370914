"""Kafka as Ackline sees it: log bounds, group offsets, exact reads and dead letters, on confluent-kafka.

Everything that goes wrong leaves this package as an `AcklineError`. Importing it, or `config`, loads no
client library: pipeline files are checked while Airflow parses DAGs.
"""
