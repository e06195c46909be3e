"""The pages of an app, which a worker's console has beside those of the log: views in, HTML out.

Rules of the package: as of `pages`; the figures are those of one worker, and a page says so.
"""

from __future__ import annotations
