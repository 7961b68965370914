"""Imports the Spark provider's operator and hook without opening a socket.

The provider imports urllib3, which binds a socket to find out whether the machine has IPv6. A DAG file must open no
socket, because Airflow parses it every few seconds. So urllib3 gets the answer of Python's own `socket.has_ipv6`.
"""

import socket
import sys

_probed = "urllib3.util.connection" in sys.modules
_has_ipv6, socket.has_ipv6 = socket.has_ipv6, False
try:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
finally:
    socket.has_ipv6 = _has_ipv6
if not _probed and "urllib3.util.connection" in sys.modules:
    sys.modules["urllib3.util.connection"].HAS_IPV6 = _has_ipv6  # type: ignore[attr-defined]

__all__ = ["SparkSubmitHook", "SparkSubmitOperator"]
