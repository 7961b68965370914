"""What became of the tuples of one attempt at a record, step by step: how it is stored, and in plain words. Pure.

The task that decides an attempt writes it: the acker, or the task of the source where the tree ends there.
"""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class StepStory(NamedTuple):
    """The tuples of one record at one step. A tuple that was skipped is in none of the numbers."""

    acked: int
    failed: int
    missing: int
    """Tuples that were sent to the step, and that it neither acked nor failed: a join held them, or they got lost."""


Story = Mapping[str, StepStory]
"""By step, in the order of the pipeline file; only the steps that a tuple of the record has reached."""


def encode(steps: Iterable[tuple[str, StepStory]]) -> str:
    """Returns the steps as the text that the tables hold. Leaves out each step that no tuple has reached."""
    reached = {name: step._asdict() for name, step in steps if any(step)}
    return json.dumps(reached, separators=(",", ":"))


def decode(text: str | None) -> Story | None:
    """Returns the story in a text of the tables; None if it holds none: another version of Ackline may have written
    it."""
    try:
        steps = json.loads(text or "null")
        return {str(name): StepStory(*(int(of[key]) for key in StepStory._fields)) for name, of in steps.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def story_json(story: Story | None) -> dict[str, dict[str, int]] | None:
    """Returns the story as `ackline explain --json` prints it."""
    return None if story is None else {name: step._asdict() for name, step in story.items()}


def story_text(story: Story) -> str:
    """Returns the story in words, such as `of its 5 tuples at price 3 were acked, 1 failed, 1 is missing`."""
    texts = [_step_text(name, step) for name, step in story.items()]
    return "; ".join(texts) if texts else "no step got a tuple of it"


def _step_text(name: str, step: StepStory) -> str:
    count = sum(step)
    if count == step.acked:
        return f"its tuple at {name} was acked" if count == 1 else f"all of its {count} tuples at {name} were acked"
    if count == 1:
        return f"its tuple at {name} {'failed' if step.failed else 'is missing'}"
    acked = f"{step.acked} {'was' if step.acked == 1 else 'were'} acked" if step.acked else ""
    failed = f"{step.failed} failed" if step.failed else ""
    missing = f"{step.missing} {'is' if step.missing == 1 else 'are'} missing" if step.missing else ""
    return f"of its {count} tuples at {name} {', '.join(filter(None, [acked, failed, missing]))}"
