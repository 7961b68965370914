"""Params of a DAG from the fields of a form: a title, an explanation, and the schema that refuses wrong values."""

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Param

from ackline.pipeline.form import Field, FieldType


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
