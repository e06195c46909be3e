"""Store refusals: which errors of an object store say that a setting is wrong.

A store that is away, or has too much to do, is asked again until it answers. A bucket that does not
exist, a key that is missing or a region that is another one stays so until an operator changes the
settings, and a task that waited for it would hide the fault.

The libraries have no class for it: Rust's `object_store` (in obstore and deltalake) and Arrow (in
pyiceberg) raise plain errors for nearly all of them. So their texts decide, by the HTTP status in
them where there is one.
"""

from __future__ import annotations

import re
from typing import Final

_STATUS: Final = re.compile(r"(?:non-2xx status code: |\(HTTP status )(\d{3})\b")
_REFUSALS: Final = range(300, 500)
_PASSING: Final = frozenset({404, 408, 409, 412, 425, 429})
"""Statuses below 500 that do not blame the settings: a missing object, a conflict, a request that
was too slow, or one too many. A missing bucket has an error of its own (`_NO_BUCKET`)."""
_OVERLOADED: Final = frozenset({429, *range(500, 600)})
_NO_BUCKET: Final = re.compile(
    r"NoSuchBucket|NO_SUCH_BUCKET|bucket does not exist|ContainerNotFound|container does not exist"
)
_REFUSED: Final = re.compile(
    r"Generic \w+ error: Missing \w+"  # A half of a login, such as SecretAccessKey.
    r"|incorrectly configured region"
    r"|HTTP error: builder error"  # An endpoint that can't be asked: http: is not allowed.
    r"|AWS Error (?:ACCESS_DENIED|INVALID_\w+|MISSING_\w+|OPT_IN_REQUIRED|SIGNATURE_\w+"
    r"|UNRECOGNIZED_CLIENT) during"
)
_METADATA_SERVICE: Final = "169.254.169.254"


def refusal(said: str) -> str | None:
    """Return what a store refuses and what to look at; None if it may answer otherwise later.

    Args:
        said: the library's error, in one line.
    """
    found = _STATUS.search(said)
    status = 0 if found is None else int(found[1])
    is_refused = status in _REFUSALS and status not in _PASSING
    if _NO_BUCKET.search(said):
        return f"the bucket does not exist: {said}"
    # It may be overloaded where many processes ask it; no other fault of it passes.
    if _METADATA_SERVICE in said and status not in _OVERLOADED:
        return (
            "there are no credentials in the settings or the environment, and this machine's "
            f"metadata service gives none: {said}"
        )
    if is_refused or _REFUSED.search(said):
        return f"the store refuses: {said}; look at the bucket, region, endpoint and credentials"
    return None
