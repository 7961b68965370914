"""How the JVMs of the tests start: quickly, because each lives for some seconds."""

from ackline.spark import jvm

FIRST_COMPILER = "-XX:TieredStopAtLevel=1"
"""Spark and brokers live so briefly in tests that the second JIT compiler would take half of their time for nothing."""


def options() -> str:
    """Returns the options for a JVM of Spark that has none of its own: executors, master and workers."""
    return " ".join([FIRST_COMPILER, *jvm.archive_options()])
