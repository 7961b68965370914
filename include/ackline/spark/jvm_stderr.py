"""Filters the standard error of the JVM that this process starts.

Java prints a warning about an incubator module, which Spark adds to each driver, and others about its own options. They
come before log4j is configured, and no option of Java turns them off. They concern no user, and would cross the
progress bar. All other lines pass: an error of the JVM itself must be seen.
"""

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

NOISE = (
    b"WARNING: Using incubator modules:",
    b"WARNING: A terminally deprecated method in sun.misc.Unsafe",
    b"WARNING: sun.misc.Unsafe::",
    b"WARNING: Please consider reporting this to the maintainers of class org.apache.spark.",
    b"WARNING: Please consider reporting this to the maintainers of class io.netty.",
    b"Picked up JAVA_TOOL_OPTIONS:",
    b"Picked up _JAVA_OPTIONS:",
)
"""Where the text begins that is dropped, up to the end of its line."""
_NOISE = re.compile(b"|".join(map(re.escape, NOISE)))
_END = re.compile(rb"[\r\n]")
_LONGEST = max(map(len, NOISE))


@contextmanager
def quiet_jvm() -> Iterator[None]:
    """Filters what processes print on standard error that are started during the context, for as long as they live.

    What this process prints through `sys.stderr` is not filtered, and is written at once. Does nothing if this process
    has no standard error.
    """
    try:
        real = os.dup(2)
    except OSError:
        yield
        return
    source, sink = os.pipe()
    # A thread, because the JVM outlives the context. It ends when the last process that prints there has ended.
    passes_on = threading.Thread(target=_pass_on, args=(source, os.dup(real)), name="ackline-jvm-stderr", daemon=True)
    before = sys.stderr
    # Ctrl-C may come at any of these lines. What this process itself prints goes to the real standard error, so that
    # its last words need no thread, which may not run yet or may end with the process before it has passed them on.
    own = os.fdopen(os.dup(real), "w", buffering=1, encoding="utf-8", errors="backslashreplace")
    try:
        passes_on.start()
        before.flush()
        sys.stderr = own
        os.dup2(sink, 2)
        os.close(sink)
        yield
    finally:
        os.dup2(real, 2)
        sys.stderr = before
        os.close(real)


def _pass_on(source: int, real: int) -> None:
    lines = LineFilter()
    with open(source, "rb", buffering=0) as stream:
        while chunk := stream.read(4096):
            _write(real, lines.passed(chunk))
    _write(real, lines.rest())
    os.close(real)


def _write(real: int, text: bytes) -> None:
    while text:
        text = text[os.write(real, text) :]


class LineFilter:
    """Drops the text from where NOISE begins to the end of its line. Holds back only what may be the start of NOISE.

    NOISE may begin anywhere in a line: a library of the JVM may write without ending its lines.
    """

    def __init__(self) -> None:
        self._held = b""
        self._drops = False
        """Whether the rest of the present line is dropped."""

    def passed(self, chunk: bytes) -> bytes:
        """Returns what may pass of everything that has come so far."""
        text, passed = self._held + chunk, b""
        self._held = b""
        while text:
            if self._drops:
                end = _END.search(text)
                self._drops, text = end is None, text[end.end() :] if end else b""
            elif found := _NOISE.search(text):
                passed += text[: found.start()]
                self._drops, text = True, text[found.end() :]
            else:
                start = _possible_start(text)
                self._held = text[start:]
                return passed + text[:start]
        return passed

    def rest(self) -> bytes:
        """Returns what was held back, at the end of the stream."""
        return self._held


def _possible_start(text: bytes) -> int:
    """Returns the index at which NOISE may begin that the next chunk ends; the length of the text if there is none."""
    first = max(len(text) - _LONGEST, 0)
    return next(
        (at for at in range(first, len(text)) if any(noise.startswith(text[at:]) for noise in NOISE)), len(text)
    )
