"""pyarrow imports pandas when a program needs it, and then does what it always does."""

import re
import subprocess
import sys
from functools import cache

import pyarrow as pa
import pytest

from ackline.delta.later_pandas import SHIM

WAYS = {
    "an import": "",
    "an import of a part": "import pandas.core.frame",
    "an import in a thread": "t = threading.Thread(target=__import__, args=['pandas']); t.start(); t.join()",
    "to_pandas": "pa.table({'a': [1]}).to_pandas()",
    "a timestamp of nanoseconds": "pa.scalar(1, pa.timestamp('ns', 'UTC')).as_py()",
    "a duration of nanoseconds": "pa.scalar(1, pa.duration('ns')).as_py()",
}
"""What a program does that imports pandas, before it names pandas itself."""
CASES = """
import datetime, decimal, io, pickle, sys, threading
import numpy as np, pyarrow as pa
if sys.argv[1] == "later":
    import ackline.delta
import pyarrow.dataset

def show(name, made):
    try:
        value = made()
        print(name, type(value), repr(value), getattr(value, "type", ""), flush=True)
    except Exception as error:
        print(name, type(error), error, flush=True)

def without_pandas():
    dates = [f"{kind}8[{unit}]" for kind in "mM" for unit in ("Y", "D", "h", "s", "ms", "us", "ns")]
    for code in ("?", "i2", "u4", "f4", "f8", "S3", "U3", "O", *dates):
        show(code, lambda: pa.array(np.zeros(2, code)))
        show(code, lambda: pa.array(np.zeros(2, code), pa.timestamp("us")))
        show(code, lambda: pa.array(np.ma.masked_array(np.zeros(2, code), [True, False])))
    show("list", lambda: pa.array([1, None, float("nan")], from_pandas=True))
    show("decimal", lambda: pa.array([decimal.Decimal("NaN"), 1], from_pandas=True))
    show("time", lambda: pa.array([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)])[0].as_py())
    show("zone", lambda: pa.scalar(1, pa.timestamp("us", "Europe/Paris")).as_py())
    show("batch", lambda: pa.record_batch({"a": [1]}))
    show("no batch", lambda: pa.record_batch(object()))
    show("no table", lambda: pa.table(7))

without_pandas()
assert ("pandas" in sys.modules) == (sys.argv[1] == "always")
exec(sys.argv[2])
assert "pandas" in sys.modules or not sys.argv[2]
import pandas as pd
single = {"na": pd.NA, "nat": pd.NaT, "time": pd.Timestamp(1_000), "nanosecond": pd.Timestamp(1),
          "delta": pd.Timedelta(1), "offset": pd.DateOffset(months=1, days=2)}
for name, value in single.items():
    for objects in ([value], [value, None]):
        show(name, lambda: pa.array(objects))
        show(name, lambda: pa.array(objects, from_pandas=True))
        show(name, lambda: pa.array(pd.Series(objects, dtype=object)))
        show(name, lambda: pa.array(objects, pa.timestamp("ns")))
frame = pd.DataFrame({"n": [1, None], "s": ["a", None], "t": pd.to_datetime(["2026-01-01", None], utc=True),
                      "c": pd.Categorical(["x", "y"]), "i": pd.array([1, None], "Int64"), "o": [pd.NA, "z"],
                      "p": pd.period_range("2026", periods=2, freq="D"), "b": [b"a", b"b"]})
for name in frame:
    show(name, lambda: pa.array(frame[name]))
    show(name, lambda: pa.array(pd.Index(frame[name])))
    show(name, lambda: pa.Table.from_pandas(frame[[name]]))
    show(name, lambda: pa.table(frame[[name]]).to_pandas().dtypes)
    show(name, lambda: pa.record_batch(frame[[name]]).to_pandas())
for unit in ("us", "ns"):
    zoned = [pa.timestamp(unit, zone) for zone in ("UTC", "Europe/Paris")]
    for kind in (pa.timestamp(unit), *zoned, pa.duration(unit), pa.time64(unit)):
        show(kind, lambda: pa.scalar(1, kind).as_py())
        show(kind, lambda: pa.array([1000, None], kind).to_pylist())
        show(kind, lambda: pa.array([1, None], kind).to_pandas())
show("interval", lambda: pa.array([(1, 2, 3)], pa.month_day_nano_interval()).to_pandas())
show("pickle", lambda: pickle.loads(pickle.dumps(frame)).equals(frame))
show("csv", lambda: pd.read_csv(io.StringIO("a,b\\n1,x")))
show("pandas", lambda: (pd, pd._libs, pd.__spec__, pd.__loader__, pd.util, pd.compat, pd._config, pd.errors))
show("names", lambda: sorted(set(vars(pd))))
show("modules", lambda: sorted(name for name in sys.modules if name.partition(".")[0] == "pandas"))
show("shim", lambda: (pa.lib._pandas_api.have_pandas, pa.lib._pandas_api.version, pa.lib._pandas_api.pd))
show("finders", lambda: len(sys.meta_path))
without_pandas()
"""
"""What pyarrow does with and without objects of pandas. The first argument says whether pyarrow imports pandas always
or later, the second one is code that imports pandas."""


@cache
def printed(when: str, way: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", CASES, when, way]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return re.sub(r" at 0x\w+", "", done.stdout)


@pytest.mark.parametrize("way", WAYS)
def test_pyarrow_does_before_and_after_an_import_of_pandas_what_it_always_does(way: str) -> None:
    always = printed("always", "")
    assert printed("later", WAYS[way]) == always
    assert always.count("\n") > 500


def test_pyarrow_has_the_private_name_of_its_shim() -> None:
    """Without it nothing fails, but each process imports pandas again."""
    assert hasattr(pa.lib, SHIM)


@pytest.mark.parametrize("missing", ["pandas", "pandas._libs.missing"])
def test_a_pandas_that_is_missing_or_broken_is_so_for_a_program_too(missing: str) -> None:
    program = f"""
import sys
class Missing:
    def find_spec(self, name, path, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError("missing", name=name)
sys.meta_path.insert(0, Missing())
import ackline.delta
import pyarrow as pa
print(pa.array([1, None]).to_pylist(), pa.scalar(1000, pa.timestamp("ns")).as_py().year)
try:
    import pandas
except ModuleNotFoundError as error:
    print(error.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[1, None] 1970", missing]
