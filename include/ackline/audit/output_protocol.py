"""Which existing tables an output can append to, by Delta's protocol and by what a table requires of its writers.

Ackline writes the data files itself, and delta-rs the log entry. delta-rs refuses each entry for a table with a feature
that it does not write. delta-rs does not check the data files, so Ackline could break a constraint of the table.
Ackline refuses such a table before a record is handled, because after the settlement the lane could only wait.
"""

from deltalake import DeltaTable

WRITABLE_FEATURES = frozenset(
    {
        "appendOnly", "changeDataFeed", "checkConstraints", "columnMapping", "deletionVectors", "generatedColumns",
        "invariants", "timestampNtz", "variantType",
    }
)  # fmt: skip
"""The features for writers that a table may have. An upgrade of the protocol adds those for columns and constraints to
tables that do not use them, so `obstacle_of` looks for their use."""

_COLUMN_MAPPING, _CONSTRAINT = "delta.columnMapping.mode", "delta.constraints."
_OF_COLUMNS = {
    "delta.invariants": "an invariant",
    "delta.generationExpression": "a generation expression",
    "delta.identity.start": "identity values",
}
"""Keys in the metadata of a column that require something of a writer, and how an error names each."""


def obstacle_of(table: DeltaTable) -> str | None:
    """Returns what a table has that an output can't write, as an error names it; None if an output can append."""
    configuration = table.metadata().configuration
    mapping = configuration.get(_COLUMN_MAPPING, "none")
    if mapping != "none":
        return f"column mapping ({_COLUMN_MAPPING} is {mapping})"
    features = sorted(set(table.protocol().writer_features or ()) - WRITABLE_FEATURES)
    if features:
        return f"the table feature {', '.join(features)}"
    constraints = sorted(key.removeprefix(_CONSTRAINT) for key in configuration if key.startswith(_CONSTRAINT))
    if constraints:
        return f"the constraint {', '.join(constraints)}"
    for field in table.schema().fields:
        if not field.nullable:
            return f"the column {field.name} that is NOT NULL"
        for key, what in _OF_COLUMNS.items():
            if key in field.metadata:
                return f"the column {field.name} with {what}"
    return None
