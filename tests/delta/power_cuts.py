"""A disk whose power is cut before each of its syncs, and every state in which it may come back.

What was not synced may be there or not, whole, cut short or empty, each file independently of the others.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest


@dataclass(frozen=True, slots=True)
class PowerCut:
    """What a power cut finds: a copy of the disk, and what of it was not synced."""

    copy: Path
    names: frozenset[Path]
    """Files and folders whose directory entry may be lost."""
    contents: frozenset[Path]
    """Files whose content may be lost, in whole or in part."""

    def outcomes(self, folder: Path) -> Iterator[tuple[str, Path]]:
        """Yields each state in which the disk may come back, with its description."""
        unsafe = sorted(self.names | self.contents)
        for number, fates in enumerate(itertools.product(*map(self._fates, unsafe))):
            lost = {path for path, fate in zip(unsafe, fates, strict=True) if fate == "lost"}
            if any(fate != "whole" and lost & set(path.parents) for path, fate in zip(unsafe, fates, strict=True)):
                continue  # the path is lost with its folder, as in another of these states
            disk = folder / str(number)
            shutil.copytree(self.copy, disk)
            for path, fate in zip(unsafe, fates, strict=True):
                _suffer(disk / path, fate)
            yield ", ".join(f"{path} {fate}" for path, fate in zip(unsafe, fates, strict=True)), disk
            shutil.rmtree(disk)

    def _fates(self, path: Path) -> list[str]:
        torn = ["empty", "cut short"] if path in self.contents else []
        return ["whole", *torn, *(["lost"] if path in self.names else [])]


def _suffer(path: Path, fate: str) -> None:
    if not path.exists() or fate == "whole":  # its folder may be lost
        return
    if fate == "lost":
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2] if fate == "cut short" else b"")


@dataclass(slots=True)
class Disk:
    """The folder `root`, whose state is copied to `copies` before each sync while `watch` runs something."""

    root: Path
    copies: Path
    _contents: set[int] = field(default_factory=set)
    """The files, by inode, whose content is on the disk."""
    _names: set[Path] = field(default_factory=set)
    """The paths whose directory entries are on the disk."""

    def watch(self, write: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[PowerCut]:
        """Returns a power cut before each sync of `write`, and one right after it."""
        cuts: list[PowerCut] = []
        fsync = os.fsync

        def cut_then_sync(descriptor: int) -> None:
            cuts.append(self._cut())
            fsync(descriptor)
            self._note(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", cut_then_sync)
            write()
        return [*cuts, self._cut()]

    def _note(self, synced: Path) -> None:
        if synced.is_dir():
            self._names |= set(synced.iterdir())
        else:
            self._contents.add(synced.stat().st_ino)

    def _cut(self) -> PowerCut:
        copy = self.copies / str(len(list(self.copies.iterdir())))
        shutil.copytree(self.root, copy, ignore=shutil.ignore_patterns(".*"))
        at = {path.relative_to(copy): self.root / path.relative_to(copy) for path in copy.rglob("*")}
        return PowerCut(
            copy,
            frozenset(path for path, real in at.items() if real not in self._names),
            frozenset(p for p, real in at.items() if real.is_file() and real.stat().st_ino not in self._contents),
        )
