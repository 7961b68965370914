"""Runs a command many times: `python -m tests.e2e.forked_commands TIMES AT_ONCE ARGUMENT…`.

Each run is a process of its own, forked from one that has imported the command and has done nothing else. Prints a JSON
list with the status, the output and the errors of each run.
"""

import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor

from ackline.cli.app import COMMANDS
from tests.e2e.commands import run_here


def main(times: str, at_once: str, *arguments: str) -> None:
    """Runs the command, so many processes at once."""
    forked = multiprocessing.get_context("forkserver")
    forked.set_forkserver_preload([f"ackline.cli.{module}" for module, _ in COMMANDS.values()])
    with ProcessPoolExecutor(int(at_once), mp_context=forked, max_tasks_per_child=1) as pool:
        runs = [pool.submit(run_here, arguments, {}) for _ in range(int(times))]
        done = [run.result() for run in runs]
    print(json.dumps([(run.returncode, run.stdout, run.stderr) for run in done]))


if __name__ == "__main__":
    main(*sys.argv[1:])
