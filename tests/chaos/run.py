"""Runs the state machine for a number of steps.

    python -m tests.chaos.run --steps 100000 [--newest 1000000] [--seed N]

Then it runs the machine of tables with `rows: newest`, whose steps are much quicker. It prints its seed; the same seed
and steps repeat the run. If an invariant does not hold, it prints the shortest sequence of events that it finds to
break it, or what came last in the world of tables, and exits with 1.
"""

import argparse
import logging
import random
import sys
import time
import traceback
from collections.abc import Sequence

from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.chaos.answered_machine import AnsweredMachine
from tests.chaos.machine import ChaosMachine
from tests.chaos.newest_machine import explore_newest
from tests.chaos.ordered_machine import OrderedMachine

STEPS_A_WORLD = 50
WORLDS_A_BATCH = 100


def explore(
    steps: int, first_seed: int, *, shrink: bool = True, machines: Sequence[type[ChaosMachine]] = (ChaosMachine,)
) -> int:
    """Takes at least `steps` steps, in worlds of `STEPS_A_WORLD` each, and returns how many.

    The batches of worlds are of the `machines` in turn.

    Raises Violation; with `shrink`, after it has looked for the shortest sequence.
    """
    taken = batch = 0
    while taken < steps:

        class Batch(machines[batch % len(machines)]):  # type: ignore[misc]
            steps = 0

        worlds = min(WORLDS_A_BATCH, -(-(steps - taken) // STEPS_A_WORLD))
        run_state_machine_as_test(seed(first_seed + batch)(Batch), settings=_settings(worlds, shrink))
        taken, batch = taken + Batch.steps, batch + 1
    return taken


def _settings(worlds: int, shrink: bool) -> settings:
    return settings(
        max_examples=worlds,
        stateful_step_count=STEPS_A_WORLD,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=Verbosity.normal if shrink else Verbosity.quiet,
        suppress_health_check=list(HealthCheck),
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Runs that stop, die and come back late, in worlds full of faults.")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--newest", type=int, help="steps of tables with `rows: newest`; ten times --steps")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    options = parser.parse_args(arguments)
    newest = 10 * options.steps if options.newest is None else options.newest
    logging.disable(logging.WARNING)  # the errors of these worlds are intended
    print(f"seed {options.seed}", flush=True)
    began = time.monotonic()
    try:
        taken = explore(options.steps, options.seed, machines=(ChaosMachine, AnsweredMachine, OrderedMachine))
        drawn = explore_newest(newest, options.seed)
    except Exception as error:
        traceback.print_exception(error)
        print(f"seed {options.seed}: {error}", file=sys.stderr)
        return 1
    print(f"{taken} steps, and {newest} of tables, in {time.monotonic() - began:.0f} s: every invariant held")
    print(", ".join(f"{what}: {number}" for what, number in sorted(drawn.items())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
