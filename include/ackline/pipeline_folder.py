"""The folder of pipeline files. Each file is checked alone (`ackline.pipeline`), then together with the others."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ackline import yaml_file
from ackline.conflicts import conflicts
from ackline.errors import ConfigError
from ackline.pipeline import Pipeline, load

_SUFFIXES = (".yaml", ".yml")
_NAME = re.compile(r"""^name:\s*["']?([^"'#\s]+)""", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class LoadedFolder:
    """The valid pipelines of a folder, by name, and the errors of the files that are refused, by path."""

    pipelines: Mapping[str, Pipeline]
    broken: Mapping[Path, ConfigError]


def load_folder(folder: Path) -> LoadedFolder:
    """Loads each `*.yaml` and `*.yml` of a folder. A file that is refused does not affect the others.

    Refuses both of two files with the same name, and both of two with the same group and a common topic: which one
    commits the group's offsets last would depend on chance. Refuses files whose dead letters come back to them.
    """
    valid: dict[Path, Pipeline] = {}
    broken: dict[Path, ConfigError] = {}
    for path in _files(folder):
        try:
            valid[path] = load(path)
        except ConfigError as error:
            broken[path] = error
    for path, _, key, reason in conflicts(valid):
        line = yaml_file.line_of(yaml_file.read(path)[0], key.split("."))
        broken[path] = ConfigError(f"{path}:{line}: {key}: {reason}", file=path, key=key)
    return LoadedFolder({p.name: p for path, p in valid.items() if path not in broken}, broken)


def find_pipeline(folder: Path, name: str) -> Pipeline:
    """Returns the pipeline `name` of a folder.

    Raises ConfigError if the folder does not exist or has no such pipeline, or with the problems of its file.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"no folder of pipeline files at {folder}; set ACKLINE_PIPELINES, or start from the project's root"
        )
    loaded = load_folder(folder)
    if name in loaded.pipelines:
        return loaded.pipelines[name]
    for path, error in loaded.broken.items():
        if name in (path.stem, _guess_name(path)):
            raise error
    names = ", ".join(sorted(loaded.pipelines)) or "none"
    raise ConfigError(f"no pipeline named {name} in {folder}; write one of these names: {names}")


def load_pipeline(folder: Path, name: str) -> Pipeline:
    """Returns the pipeline `name` from its own file, without loading the others.

    For a task or a driver, whose file the DAG processor has checked together with the others. Among 10,000 files it
    takes a fraction of a second: a file `NAME.yaml` is looked at first, then the line `name:` of each file. Raises
    ConfigError as `find_pipeline` does.
    """
    for path in _own_file_first(folder, name):
        if _guess_name(path) == name:
            return load(path)
    return find_pipeline(folder, name)


def _own_file_first(folder: Path, name: str) -> Iterator[Path]:
    yield from (path for suffix in _SUFFIXES if (path := folder / f"{name}{suffix}").is_file())
    yield from _files(folder)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*") if path.suffix in _SUFFIXES and not path.is_dir())


def _guess_name(path: Path) -> str:
    """Returns the name that a refused file seems to give its pipeline; empty if none is found."""
    try:
        if not path.is_file():  # a device may have no end
            return ""
        with path.open(encoding="utf-8", errors="replace") as file:
            match = _NAME.search(file.read(yaml_file.MAX_BYTES))
    except OSError:
        return ""
    return match[1] if match else ""
