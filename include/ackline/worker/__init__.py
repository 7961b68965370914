"""What runs inside a Spark task: it calls handlers, and writes outcomes and staged rows to files."""
