"""The folder of pipeline files: each is checked by itself (`ackline.pipeline`), and then beside the others."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ackline import yaml_file
from ackline.conflicts import conflicts
from ackline.errors import ConfigError
from ackline.pipeline import Pipeline, load

_NAME = re.compile(r"""^name:\s*["']?([^"'#\s]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A folder of pipeline files: those that hold, by name, and what is wrong with the others, by file."""

    pipelines: Mapping[str, Pipeline]
    broken: Mapping[Path, ConfigError]


def load_folder(folder: Path) -> Loaded:
    """Every `*.yaml` and `*.yml` of a folder; one broken file leaves the others as they are.

    Two files with the same name, or with the same group and a topic in common, are both refused: which of them owned
    the group's offsets would be left to chance. So are those whose dead letters would come round to them again.
    """
    found: dict[Path, Pipeline] = {}
    broken: dict[Path, ConfigError] = {}
    for path in sorted(p for p in folder.glob("*") if p.suffix in (".yaml", ".yml") and not p.is_dir()):
        try:
            found[path] = load(path)
        except ConfigError as error:
            broken[path] = error
    for path, _, key, reason in conflicts(found):
        line = yaml_file.line_of(yaml_file.read(path)[0], key.split("."))
        broken[path] = ConfigError(f"{path}:{line}: {key}: {reason}", file=path, key=key)
    return Loaded({p.name: p for path, p in found.items() if path not in broken}, broken)


def find(folder: Path, name: str) -> Pipeline:
    """The pipeline `name` of a folder. Raises ConfigError, with what is wrong or which names there are."""
    if not folder.is_dir():
        raise ConfigError(
            f"no folder of pipeline files at {folder}: set ACKLINE_PIPELINES, or start from the project's root"
        )
    loaded = load_folder(folder)
    if name in loaded.pipelines:
        return loaded.pipelines[name]
    for path, error in loaded.broken.items():
        if name in (path.stem, _first_name(path)):
            raise error
    there = ", ".join(sorted(loaded.pipelines)) or "none"
    raise ConfigError(f"no pipeline named {name} in {folder}; there: {there}")


def _first_name(path: Path) -> str:
    """The name that a broken file seems to give its pipeline, or an empty one."""
    try:
        if not path.is_file():  # a device may have no end
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            found = _NAME.search(file.read(yaml_file.LARGEST))
    except OSError:
        return ""
    return found[1] if found else ""
