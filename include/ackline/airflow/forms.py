"""The params of the DAGs: each has a title, an explanation, and the schema that refuses wrong values."""

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Param

from ackline.pipeline.arguments import PARTITION_PATTERN
from ackline.pipeline.form import Field, FieldType
from ackline.pipeline.pipeline import Pipeline


def params_of(fields: Iterable[Field]) -> dict[str, Param]:
    """Returns the params of the fields that the DAG's form has, in their order."""
    return {field.name: param_of(field) for field in fields if field.in_dag}


def param_of(field: Field) -> Param:
    """Returns the param of a field. A field that is left empty has null, or an empty list."""
    schema: dict[str, Any] = {name: getattr(field, name) for name in ("pattern", "format") if getattr(field, name)}
    bounds = {"minimum": field.minimum, "maximum": field.maximum}
    match field.type:
        case FieldType.TEXT:
            schema |= {"type": ["null", "string"] if field.default is None else "string", "maxLength": 500}
        case FieldType.FLAG:
            schema = {"type": "boolean"}
        case FieldType.NUMBER:
            schema = {"type": ["null", "integer"], **bounds}
        case FieldType.TEXTS:
            schema = {"type": "array", "items": {"type": "string", **schema}}
        case FieldType.NUMBERS:
            schema = {"type": "array", "items": {"type": "integer", **bounds}}
    if field.choices:
        schema["enum"] = list(field.choices) if field.default is not None else [None, *field.choices]
    several = field.type in (FieldType.TEXTS, FieldType.NUMBERS)
    description = f"{field.help}, one on each line." if several else field.help
    return Param(field.empty, title=field.title, description=description, **schema)


def run_params(pipeline: Pipeline) -> dict[str, Param]:
    """Returns the fields of the form that triggers a run, with their JSON schemas. A scheduled run has the defaults."""
    limit = pipeline.max_records_per_run
    return {
        "max_records": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=limit,
            title="At most so many records",
            description=f"How many offsets a turn reads, fresh ones and retries. Empty: {limit:,}, as in the file.",
        ),
        "only_retries": Param(
            False,
            type="boolean",
            title="Only retries",
            description="Reads the retries that are due, and no new record.",
        ),
        "partitions": Param(
            None,
            type=["null", "array"],
            items={"type": "string", "pattern": PARTITION_PATTERN},
            minItems=1,
            title="Only these partitions",
            description="Partitions such as orders[0], one on each line. Empty: all. The others are not read.",
        ),
        "confirm_offsets": Param(
            None,
            type=["null", "integer"],
            minimum=1,
            maximum=10**12,
            title="Offsets of an interval",
            description="Only for Airflow's own backfill. An interval of more offsets than this is refused. "
            f"Empty: {pipeline.backfill.confirm_above:,}, the file's `backfill.confirm_above`.",
        ),
    }
