"""spark-submit entry point of the replay task: `replay.py PIPELINE --run-id=RUN`. See `ackline.airflow.driver`."""

import sys

from ackline.airflow.driver import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
