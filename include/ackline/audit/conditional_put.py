"""Conditional puts: an object is created by one writer only, and the store refuses all others.

Every fence of the ledger depends on this: each entry of Delta's log is created by a conditional put. In S3 that is a
put with the header `If-None-Match: *`. Some stores ignore the header; there a rival's turn would overwrite ours.

obstore makes the puts here: it is the Python binding of the Rust library through which delta-rs commits. Arrow has no
conditional put, and delta-rs looks for a rival's entry first, so that its commits prove nothing about the store.
"""

import uuid
from typing import TYPE_CHECKING, Any

from ackline.audit.object_store import cause_of, is_outage, is_remote, options_of, unusable
from ackline.errors import ConfigError, TransientError
from ackline.scrub import scrub_address

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_proved: set[str] = set()
"""The buckets that this process has proved."""


def create_exclusively(root: str, name: str, content: bytes = b"") -> bool:
    """Creates the object `name` below the URI `root`. Returns False if it exists; of all callers one gets True.

    Raises OSError if the store can't be used, ConnectionError if it does not answer. If the answer to a put is lost,
    the object may exist although no caller has got True: a caller that gets False must not take the object for its own.
    """
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        _put(open_store(root), name, content)
    except AlreadyExistsError:
        return False
    except BaseError as error:
        raise _os_error(error, root) from None
    return True


def prove_conditional_put(folder: str) -> None:
    """Checks that the object store of a URI refuses to create an object twice. Does nothing for a path.

    A process proves each bucket once. Raises ConfigError if the second put overwrites the first, or if the store can't
    be used, and TransientError if it does not answer.
    """
    bucket = "/".join(folder.split("/", 3)[:3])
    if not is_remote(folder) or bucket in _proved:
        return
    probe = f".probe-{uuid.uuid4()}"  # readers pass over names that begin with a dot
    try:
        first, second = create_exclusively(folder, probe), create_exclusively(folder, probe)
        remove_object(folder, probe)
    except ConnectionError as error:
        raise unusable(f"the object store of {scrub_address(folder)}", error, folder) from None
    except OSError as error:
        raise ConfigError(
            f"the object store of {scrub_address(folder)} can't be used: {error}. Check bucket, endpoint, region and "
            f"login, and that the login may list, read, write and delete below ACKLINE_AUDIT",
            key="ACKLINE_AUDIT",
        ) from None
    if not first:  # the name is new, so an answer was lost on its way and the put was made again
        raise TransientError(f"the object store of {scrub_address(folder)} did not answer; run this again")
    if second:
        raise ConfigError(
            f"the object store of {scrub_address(folder)} has overwritten an object that it should have refused to "
            f"create again (S3: `If-None-Match: *`). Two runs could both store the same turn there, and records would "
            f"be lost. Use a store that supports conditional writes, or set ACKLINE_AUDIT to a file system",
            key="ACKLINE_AUDIT",
        )
    _proved.add(bucket)


def _put(store: "ObjectStore", name: str, content: bytes) -> None:
    import obstore

    obstore.put(store, name, content, mode="create", use_multipart=False)


def remove_object(folder: str, name: str, store: "ObjectStore | None" = None) -> None:
    """Removes the object `name` below the URI `folder`, with `store` if that is open already. Raises OSError.

    Arrow's `delete_file` would leave an empty object with the name of the folder.
    """
    import obstore
    from obstore.exceptions import BaseError

    try:
        obstore.delete(store or open_store(folder), name)
    except BaseError as error:
        raise _os_error(error, folder) from None


def _os_error(error: Exception, uri: str) -> OSError:
    """Returns a ConnectionError if the store did not answer: the text may be too long to show that."""
    return (ConnectionError if is_outage(error) else OSError)(cause_of(error, uri))


def open_store(root: str) -> "ObjectStore":
    """Returns obstore's client for the objects below a URI. Raises what `options_of` raises."""
    from obstore.store import from_url

    options = options_of(root)
    # obstore takes this one as an option of its HTTP client.
    insecure = options.pop("aws_allow_http", "").lower() in ("true", "1")
    config: Any = options
    return from_url(root, config=config, client_options={"allow_http": insecure})
