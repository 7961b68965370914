"""The pipeline file: parsed, checked and refused, with all that it names. Pure, but for reading that file."""
