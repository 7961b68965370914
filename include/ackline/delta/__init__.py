"""The Delta engine, on delta-rs: folder, log, files, reads, fenced commits and compaction of one table."""

from ackline.delta.later_pandas import load_pandas_later

load_pandas_later()  # here, because pyarrow looks for pandas when `pyarrow.dataset` is imported
