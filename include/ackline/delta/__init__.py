"""The Delta engine, on delta-rs: folder, log, files, reads, fenced commits and compaction of one table."""
