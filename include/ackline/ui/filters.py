"""Which pipelines the lists of the page show: by what their files say of them, and by their state.

A list is chosen by plain parameters of its address, so it works without JavaScript and can be kept as a bookmark. A
file is parsed again only after it has changed: each open page asks for every pipeline four times a minute.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from ackline.errors import AcklineError
from ackline.ledger.states import State
from ackline.pipeline.folder import own_file, pipeline_files, pipelines_folder
from ackline.pipeline.pipeline import load


@dataclass(frozen=True, slots=True)
class ListedFile:
    """What the page shows of a pipeline file, and searches in it."""

    tags: tuple[str, ...] = ()
    owner: str | None = None
    schedule: str | None = None
    words: tuple[str, ...] = ()
    """Its topics or their pattern, its group and its owner, in lower case."""
    name: str | None = None


NO_FILE = ListedFile()


@lru_cache(maxsize=16_384)
def _listed(path: Path, modified_ns: int, size: int) -> ListedFile:
    try:
        pipeline = load(path)
    except AcklineError:  # the command and the DAG processor name what is wrong with it
        return NO_FILE
    kafka = pipeline.kafka
    words = [*(kafka.named_topics or ()), kafka.pattern, kafka.group_id, pipeline.owner]
    found = tuple(word.lower() for word in words if word)
    return ListedFile(tuple(pipeline.tags), pipeline.owner, pipeline.schedule, found, pipeline.name)


def listed_file(name: str) -> ListedFile:
    """Returns what the file of a pipeline says of it now; nothing if there is no file, or if it can't be read."""
    folder = pipelines_folder()
    try:
        path = own_file(folder, name)
        stamps = [(each, each.stat()) for each in ([path] if path else pipeline_files(folder))]
    except OSError:
        return NO_FILE
    # YAML can write the name in ways that only a parser reads.
    listed = (_listed(each, found.st_mtime_ns, found.st_size) for each, found in stamps)
    return next((file for file in listed if file.name == name), NO_FILE)


@dataclass(frozen=True, slots=True)
class Filters:
    """What an address asks for; an empty text does not filter."""

    text: str = ""
    """A part of the name, of a topic, of the group or of the owner, in any case."""
    tag: str = ""
    state: State | None = None

    @property
    def is_set(self) -> bool:
        """Whether any pipeline may be left out."""
        return self != Filters()

    def names(self, readable: Iterable[str]) -> list[str]:
        """Returns those pipelines whose name or file matches the text, and that have the tag, sorted by name."""
        text, names = self.text.strip().lower(), sorted(readable)
        if not text and not self.tag:
            return names
        return [name for name in names if self._has(text, name, listed_file(name))]

    def _has(self, text: str, name: str, file: ListedFile) -> bool:
        tagged = not self.tag or self.tag in file.tags
        return tagged and any(text in word for word in (name.lower(), *file.words))

    def shows(self, state: State) -> bool:
        """Returns whether a pipeline in this state is shown. One that can't be read is in the state unknown."""
        return self.state is None or self.state is state

    def query(self, start: int = 0) -> str:
        """Returns the end of an address that asks for this, from number `start` on."""
        given = {"q": self.text, "tag": self.tag, "state": self.state or "", "start": start or ""}
        kept = {name: value for name, value in given.items() if value}
        return f"?{urlencode(kept)}" if kept else ""

    def of_state(self, state: State) -> "Filters":
        """Returns these filters with one state; without a state if they have that one."""
        return replace(self, state=None if self.state is state else state)

    def of_tag(self, tag: str) -> "Filters":
        """Returns these filters with one tag."""
        return replace(self, tag=tag)


def tags_of(names: Collection[str]) -> list[str]:
    """Returns every tag of these pipelines, sorted."""
    return sorted({tag for name in names for tag in listed_file(name).tags})


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of a list: the pipelines on it, and what its form offers."""

    filters: Filters = field(default_factory=Filters)
    names: Sequence[str] = ()
    readable: int = 0
    """How many pipelines the user may read."""
    tags: Sequence[str] = ()
    address: str = ""
    """The address of the list without filters."""
    more: str | None = None
    """The address of the next page."""

    @property
    def states(self) -> list[State]:
        """The states that the form offers, the worst first."""
        return list(State)
