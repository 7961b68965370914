"""Which code a run hands its records to: what each turn stores, so that a failure leads to the deploy that brought it.

It is a name for people and for comparison, and decides nothing: a turn whose code can't be named runs all the same. So
nothing here raises. A process determines it once for a folder, because it imports the handlers once.
"""

import hashlib
import os
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ackline.pipeline.folder import handlers_folder

CODE = "ACKLINE_CODE"
"""The variable that names the code. A task of Airflow sets it to the version of its DAG bundle, for its driver too. An
image without a repository may set it to its own tag."""
MOST_CHARACTERS = 200
DIGITS = 12
DIRTY = "-dirty"
"""What ends the name of a commit with changes that are not committed. Two of the same name may be different code."""
GIT_SECONDS = 5.0
"""How long each of two calls of git may take."""
MOST_FILES, MOST_BYTES = 5_000, 64 * 1024 * 1024
"""How many Python files are hashed, and how many bytes of them. The code of a larger folder has no name: the hash of a
part of it would be equal for different code."""
_OF_ANOTHER_REPOSITORY = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables that a git hook sets, and that would have git look at the repository of the hook."""


def running_code() -> str:
    """Returns the code that this process runs, as one line of at most MOST_CHARACTERS characters: the variable CODE, or
    what `code_of_folder` returns for the folder of the handlers. Empty if it is not known."""
    named = " ".join(os.environ.get(CODE, "").split())
    return named[:MOST_CHARACTERS] or code_of_folder(handlers_folder())


@cache
def code_of_folder(folder: Path) -> str:
    """Returns the git commit of a folder, in DIGITS digits and with `-dirty` if something in the folder is not
    committed; without a commit that has the folder, `files:` and DIGITS digits of a hash of its Python files. Empty if
    the folder can't be read, or is too large."""
    return _commit_of(folder) or _hash_of(folder)


def _commit_of(folder: Path) -> str:
    # HEAD:./ is the folder in the commit. Git refuses it for a folder that the repository around it does not track.
    found = _git(folder, "rev-parse", "--verify", "--quiet", "HEAD:./") and _git(folder, "rev-parse", "HEAD")
    if not found:
        return ""
    # A new file counts: it may be a handler. What Python has compiled does not.
    changes = _git(folder, "status", "--porcelain", "--", ".", ":(exclude,glob)**/__pycache__/**")
    return f"{found.strip()[:DIGITS]}{'' if changes == '' else DIRTY}"


def _git(folder: Path, *arguments: str) -> str | None:
    """Returns what git prints; None without git, if it refuses, and if it takes longer than GIT_SECONDS."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env={**environment, "GIT_OPTIONAL_LOCKS": "0"},  # `status` would write the index of the repository
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout if done.returncode == 0 else None


def _hash_of(folder: Path) -> str:
    found, size = hashlib.sha256(), 0
    files = sorted(_python_files(folder))
    if not files or len(files) > MOST_FILES:
        return ""
    try:
        for path in files:
            size += path.stat().st_size
            if size > MOST_BYTES:
                return ""
            content = path.read_bytes()
            # With its length, so that no two sets of files are hashed as the same bytes.
            found.update(f"{path.relative_to(folder).as_posix()}\0{len(content)}\0".encode(errors="surrogateescape"))
            found.update(content)
    except OSError:
        return ""
    return f"files:{found.hexdigest()[:DIGITS]}"


def _python_files(folder: Path) -> Iterator[Path]:
    """Yields at most MOST_FILES + 1 Python files below a folder. Hidden folders, such as a virtual environment, are
    left out."""
    left = MOST_FILES + 1
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            if name.endswith(".py") and left:
                left -= 1
                yield Path(parent, name)
        if not left:
            return
