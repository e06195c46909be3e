"""Two hypothesis profiles: the same examples on every machine, or many more of them."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Two cores run everything at once: a slow example is the machine's, not the code's.
settings.register_profile(
    "default",
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1_000,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("STREAMLOG_PROFILE", "default"))
