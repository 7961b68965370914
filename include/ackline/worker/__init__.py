"""What runs inside a Spark task: it calls handlers, and writes outcomes and staged rows to files."""

import ackline.delta  # noqa: F401 - first, because it has pyarrow import pandas later
