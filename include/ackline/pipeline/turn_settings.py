"""What an open turn runs by: the settings that its plan has stored, and a few of the pipeline file of today. Pure.

A turn is carried out by any process, perhaps after the file was changed. Each process must come to the same outcome, so
what decides about records comes from the plan. `FROM_FILE` names all that does not.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError, create_model

from ackline.errors import ConfigError
from ackline.ledger.turns import Plan
from ackline.pipeline.field_types import StrictBlock
from ackline.pipeline.pipeline import Pipeline
from ackline.pipeline.topology import StepBlock

FROM_FILE = frozenset(
    {
        # The handler's code, which a deploy replaces while a turn is open, and how its calls are watched. The handlers
        # of steps belong here too, each by the name of its step.
        *("handler", "filter", "streams", "decode", "schema_registry", "handler_isolation", "record_timeout"),
        *("listener", "debug"),
        # Addresses and credentials. `check_open_plan_settings` refuses another `kafka.isolation`.
        *("name", "kafka", "spark", "audit"),
        # Limits, and what an operator sets to get on with a turn that waits or stops.
        *("max_uncommitted", "max_records_per_run", "max_rate", "max_offset_behind", "breaker", "lost_after"),
        *("on_expired", "on_external_reset", "missing_topics"),
        # What begins lanes and runs, and no part of a turn.
        *("start", "start_timestamp", "schedule", "backfill"),
    }
)
"""The keys that an open turn takes from the pipeline file as it is now. It takes every other key from its plan."""

_FIELDS: dict[str, Any] = {
    name: (field.annotation, field) for name, field in Pipeline.model_fields.items() if name not in FROM_FILE
}
_StoredSettings = create_model("_StoredSettings", __base__=StrictBlock, **_FIELDS)


def pipeline_of_turn(file: Pipeline, plan: Plan) -> Pipeline:
    """Returns the pipeline that an open turn runs by: the stored settings of its plan, and `FROM_FILE` of the file.

    A key that the plan does not hold was unknown to the version that stored it, and has its default. Raises ConfigError
    if this version can't read the stored settings.
    """
    try:
        stored = _StoredSettings.stored({"dead_letter": file.dead_letter, **plan.settings})
    except ValidationError as error:
        keys = ", ".join(sorted({str(problem["loc"][0]) for problem in error.errors() if problem["loc"]}))
        raise ConfigError(
            f"{plan.turn} is open, and this version can't read the settings of its plan ({keys}); settle it with the "
            f"version that planned it, or close it with `ackline void {plan.turn.pipeline} --reason …`"
        ) from None
    settings: Mapping[str, Any] = {name: getattr(stored, name) for name in _FIELDS}
    steps = settings["steps"]
    return file.model_copy(update={**settings, "steps": steps and _with_handlers(steps, file.steps or ())})


def _with_handlers(steps: Iterable[StepBlock], file: Iterable[StepBlock]) -> list[StepBlock]:
    handlers = {step.name: step.handler for step in file}
    return [step.model_copy(update={"handler": handlers.get(step.name, step.handler)}) for step in steps]
