"""The URIs of folders in object stores: of the audit root, and of output tables. Pure.

Every fence of the ledger depends on a store that creates an object once. Ackline writes only to a kind of store for
which its tests prove that, through the clients that it uses. It refuses another kind by its name.
"""

import re

from ackline.errors import SETTINGS_PAGE, ConfigError

_UNPROVED = {
    "gs": "Google Cloud Storage",
    "gcs": "Google Cloud Storage",
    "az": "Azure Blob Storage",
    "azure": "Azure Blob Storage",
    "wasb": "Azure Blob Storage",
    "wasbs": "Azure Blob Storage",
    "abfs": "Azure Blob Storage",
    "abfss": "Azure Blob Storage",
    "adl": "Azure Data Lake Storage",
}
"""Kinds of object stores that delta-rs can write to, and for which no test proves the fence, by the scheme of a URI."""


ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
ENCODED_PROBLEM = (
    "it has a `%` before two hexadecimal digits, which delta-rs reads as one character and other clients as three, so "
    "that each would use a folder of its own. Rename the folder"
)


def scheme_problem(scheme: str) -> str | None:
    """Returns why no table can be in a store with this scheme, and what to write instead; None if it can be."""
    if scheme == "s3":
        return None
    if scheme not in _UNPROVED:
        return f"it begins with {scheme}://; use a path or s3://BUCKET/FOLDER"
    return (
        f"it is in {_UNPROVED[scheme]}, where no test of Ackline has proved that of two runs that store the same turn "
        f"one is refused. This is proved for paths and for s3://BUCKET/FOLDER (Amazon S3, and each store of its "
        f"protocol that passes `ackline doctor`); use one of these"
    )


def root_uri(root: str) -> str:
    """Returns the URI of an audit root, without a slash at its end and with `s3` for Hadoop's `s3a`.

    Raises ConfigError for a URI that can't name the folder of the tables, or whose store can't hold them.
    """
    scheme, _, path = root.partition("://")
    scheme = _scheme(scheme)
    bucket = path.partition("/")[0]
    reason, shown = None, root.partition("?")[0]  # what follows a `?` may be a signature
    problem = scheme_problem(scheme)
    # A secret may contain a slash, so the `@` after it may come later. Azure's CONTAINER@ACCOUNT is no login.
    if ":" in bucket or ("@" in bucket and scheme not in ("wasb", "wasbs", "abfs", "abfss")):
        reason, shown = (
            f"it holds a login. Remove it, and set the login as {SETTINGS_PAGE} describes",
            f"{scheme}://***",
        )
    elif problem is not None:
        reason = problem
    elif "?" in path or "#" in path:
        reason = "it has a `?` or a `#`, which a URI of a folder cannot contain. Remove it"
    elif ENCODED.search(path):
        reason = ENCODED_PROBLEM
    elif not path.strip("/"):
        reason = f"it names no bucket. Write {scheme}://BUCKET/FOLDER"
    if reason is not None:
        raise ConfigError(f"ACKLINE_AUDIT={shown} can't be used: {reason}", key="ACKLINE_AUDIT")
    return f"{scheme}://{path.rstrip('/')}"


def table_uri(uri: str) -> str:
    """Returns the URI of an output table as Ackline uses it, with `s3` for `s3a`. Raises ValueError if it can't be
    used."""
    scheme, _, path = uri.partition("://")
    scheme = _scheme(scheme)
    if scheme != "file" and (problem := scheme_problem(scheme)) is not None:
        raise ValueError(f"not the URI of a table: {problem}")
    # delta-rs decodes `%`, and Arrow does not: the two would use different folders.
    if re.search(r"[?#%]", path):
        raise ValueError("not the URI of a table; write it without `?`, `#` and `%`")
    authority, _, folder = path.rstrip("/").partition("/")
    if ":" in authority or "@" in authority:
        raise ValueError("the URI holds a login; remove it, and set the login as for ACKLINE_AUDIT")
    if (scheme == "file") == bool(authority) or not folder:
        raise ValueError("not the URI of a table; write file:///FOLDER/TABLE with three slashes, or s3://BUCKET/FOLDER")
    if not {"", ".", ".."}.isdisjoint(folder.split("/")):
        raise ValueError("the URI has an empty folder name, `.` or `..`; write the folder without them")
    return f"{scheme}://{path.rstrip('/')}"


def _scheme(scheme: str) -> str:
    return "s3" if scheme == "s3a" else scheme
