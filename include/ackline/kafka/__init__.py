"""The Kafka adapter, on confluent-kafka: log bounds, group offsets, exact reads and dead letters.

Every error leaves this package as an `AcklineError`. Importing the package, or `config`, loads no client library,
because Airflow checks pipeline files while it parses DAGs.
"""
