"""The block `spark:` of a pipeline file. Pure."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from ackline.blocks import StrictBlock
from ackline.field_types import Memory, PropertyValue
from ackline.spark_properties import allowed_spark_property

SparkProperty = Annotated[str, AfterValidator(allowed_spark_property)]


class SparkBlock(StrictBlock):
    """Resources and properties of the Spark job of a pipeline."""

    driver_memory: Memory | None = None
    executor_memory: Memory | None = None
    executor_cores: int | None = Field(None, ge=1)
    python: str | None = Field(None, min_length=1)
    archives: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    encryption: Literal["required", "none"] = "required"
    conf: dict[SparkProperty, PropertyValue] = Field(default_factory=dict)

    @field_validator("archives")
    @classmethod
    def _check_no_comma(cls, archives: list[str]) -> list[str]:
        if any("," in archive for archive in archives):
            raise ValueError("an archive has a comma, which separates archives for Spark; write a list")
        return archives

    def properties(self) -> dict[str, str]:
        """Returns the Spark properties of the block, except for the memory of the driver and for encryption."""
        given = {
            "spark.executor.memory": self.executor_memory,
            "spark.executor.cores": self.executor_cores,
            "spark.archives": ",".join(self.archives) or None,
        }
        properties = {**self.conf, **{name: value for name, value in given.items() if value is not None}}
        return {name: _text(value) for name, value in properties.items()}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
