"""pyarrow without pandas, until a program imports pandas or takes an object of it from pyarrow.

pyarrow imports pandas, 0.3 s of CPU time, when it first converts a Python object: this may be an object of pandas. In a
program that has not imported pandas there is none. pyarrow keeps what it finds of pandas in three places, and
`load_pandas_later` makes each of them right before and after the import:

- Its C++ library looks once a process for five objects. The hook imports the C extensions that have them, in 0.08 s,
  and keeps these modules aside. They become parts of pandas when a program imports it, so the objects stay the same.
- Its shim for pandas looks once, and again only for what needs pandas. The hook makes it look after the import.
- Its scalars of nanoseconds become objects of pandas if the shim has pandas. `_Shim` says so, and pyarrow then imports
  pandas for the first such object.
"""

import contextlib
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pyarrow as pa

SHIM = "_pandas_api"
"""pyarrow's name of its shim for pandas, in `pyarrow.lib`. It is private; without it, pyarrow imports pandas itself."""
_OBJECTS = {
    "pandas._libs.missing": ("NA",),
    "pandas._libs.tslibs": ("NaT", "Timestamp", "Timedelta"),
    "pandas._libs.tslibs.offsets": ("DateOffset",),
}
"""What pyarrow's C++ library looks for in pandas, by the modules that have it."""


def load_pandas_later() -> None:
    """Has pyarrow import pandas when a program needs it. Call it before `pyarrow.dataset` is imported and before a
    Python object is converted. Does nothing if pandas is imported, or is not installed."""
    shim = getattr(pa.lib, SHIM, None)
    if "pandas" in sys.modules or shim is None or isinstance(shim, _Shim):
        return
    hook = _Hook(shim)
    sys.meta_path.insert(0, hook)
    with contextlib.suppress(ImportError, AttributeError):
        import_module("pandas")
    if hook.prepared:
        setattr(pa.lib, SHIM, _Shim(shim))
    elif hook.module is None:
        sys.meta_path.remove(hook)


class _Shim:
    """pyarrow's shim under its Python name. It has pandas, which an access to the rest imports where it is used."""

    have_pandas = True

    def __init__(self, shim: Any) -> None:
        self._shim = shim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shim, name)


class _Hook(MetaPathFinder, Loader):
    """Loads pandas: the first time its C extensions for pyarrow, and then the whole. Python holds the lock of the
    module meanwhile, so another thread that imports pandas waits, and gets the whole."""

    def __init__(self, shim: Any) -> None:
        self._shim = shim
        self._parts: dict[str, ModuleType] = {}
        self.module: ModuleType | None = None
        self.prepared = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns for pandas what the other finders find, with this loader."""
        if fullname != "pandas":
            return None
        others = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, others), None)
        if spec is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Returns the module of the first time, which has the C extensions as attributes."""
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        """Raises ImportError the first time, so that pandas counts as not imported."""
        if self.module is None:
            self.module = module
            try:
                self._prepare(module)
            finally:
                self._parts = {name: sys.modules.pop(name) for name in [*sys.modules] if name.startswith("pandas.")}
            raise ImportError("pandas is imported when it is needed")
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        sys.modules.update(self._parts)
        assert self._loader is not None
        self._loader.exec_module(module)
        sys.meta_path.remove(self)
        with contextlib.suppress(ImportError):  # pyarrow refuses this version
            _ = self._shim.pd

    def _prepare(self, module: ModuleType) -> None:
        for name, objects in _OBJECTS.items():
            vars(module).update({found: getattr(import_module(name), found) for found in objects})
        with contextlib.suppress(AttributeError):  # the module has no version yet, so the shim finds no pandas
            _ = self._shim.have_pandas
        pa.array([])
        self.prepared = True
