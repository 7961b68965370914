"""The process that forks Spark's Python workers on the driver's machine: it has imported what each task needs.

pyspark's own daemon imports nothing before a fork, so each worker would import pyarrow, pyspark and Ackline again: more
than a second of CPU time and 70 MiB of memory, while Spark waits. Handlers are imported after the fork, as with that
daemon, so each worker has their newest code, and their threads and connections are its own.

pyspark warns that the imports may start threads, which a fork does not copy. The memory allocators of pyarrow and of
delta-rs start one each, and NumPy's BLAS some if `OMP_NUM_THREADS` allows it. All of them stop their threads at a fork,
and a worker starts its own. pyarrow and delta-rs start their other threads at their first use, so after the fork.
"""

import gc
import os
import sys
from contextlib import redirect_stdout

from pyspark import daemon


def main() -> None:
    """Forks workers until Spark closes the standard input. With `spark.executor.pyspark.memory` it imports nothing: the
    limit is set after the fork, counts what a process has mapped, and the imports here map a GiB."""
    if "PYSPARK_EXECUTOR_MEMORY_MB" in os.environ:
        daemon.manager()
        return
    with redirect_stdout(sys.stderr):  # Spark takes the first bytes of the standard output for a port
        import numpy as np

        import ackline.trees.stages
        import ackline.worker.run
        import ackline.worker.tasks  # noqa: F401

    this = os.getpid()

    def draw_other_numbers() -> None:
        """Seeds NumPy's generator, which all workers would share. A process that a handler forks keeps its seed."""
        if os.getppid() == this:
            np.random.seed()

    os.register_at_fork(after_in_child=draw_other_numbers)
    gc.collect()
    gc.freeze()  # a worker collects garbage after each task, and would write to memory that it shares
    daemon.manager()


if __name__ == "__main__":
    main()
