"""The Spark provider's operator and hook, imported without opening a socket.

It imports urllib3, which binds a socket to learn whether this machine speaks IPv6. DAG files are parsed every few
seconds and open no socket at all; urllib3 is told what Python knows instead, and asks for either kind of address.
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
