"""Filters the standard error of the JVM that this process starts.

Java prints a warning about an incubator module, which Spark adds to each driver, and others about its own options. They
come before log4j is configured, and no option of Java turns them off. They concern no user, and would cross the
progress bar. All other lines pass: an error of the JVM itself must be seen.
"""

import os
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
"""How the lines begin that are dropped."""


@contextmanager
def quiet_jvm() -> Iterator[None]:
    """Filters what processes print on standard error that are started during the context, for as long as they live.

    Does nothing if this process has no standard error.
    """
    try:
        real = os.dup(2)
    except OSError:
        yield
        return
    source, sink = os.pipe()
    sys.stderr.flush()
    os.dup2(sink, 2)
    os.close(sink)
    # A thread, because the JVM outlives the context. It ends when the last process that prints there has ended.
    threading.Thread(target=_pass_on, args=(source, os.dup(real)), name="ackline-jvm-stderr", daemon=True).start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(real, 2)
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
    """Drops the lines that begin as NOISE does. Holds back only what may be the start of such a line."""

    def __init__(self) -> None:
        self._held = b""
        self._drops = False
        """Whether the present line is dropped."""
        self._at_start = True
        """Whether nothing of the present line was passed or dropped yet."""

    def passed(self, chunk: bytes) -> bytes:
        """Returns what may pass of everything that has come so far."""
        passed = b""
        for part in (self._held + chunk).splitlines(keepends=True):
            ends = part.endswith((b"\n", b"\r"))
            if self._at_start and not ends and any(noise.startswith(part[: len(noise)]) for noise in NOISE):
                self._held = part
                return passed
            if self._at_start:
                self._drops = part.startswith(NOISE)
            self._held = b""
            passed += b"" if self._drops else part
            self._at_start = ends
        return passed

    def rest(self) -> bytes:
        """Returns what was held back, at the end of the stream."""
        return b"" if self._held.startswith(NOISE) else self._held
