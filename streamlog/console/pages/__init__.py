"""The pages of the console, one module each: views in, HTML out, without I/O.

`page_parts` has what pages share; `page_layout` puts a page into its frame with the navigation.
"""

from __future__ import annotations
