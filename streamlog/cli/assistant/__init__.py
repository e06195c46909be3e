"""The assistant's room: `streamlog mcp`, which shows a log to programs that speak MCP.

`mcp_command` serves tools over standard input and output; `log_tools`, `app_tools` and
`change_tools` have the tools, which ask what the console and the adviser ask.

Rules of the package: an answer has a bound in rows, in characters and in time; secrets are not
shown; what comes from records is marked as data; a change is shown as a plan before it is made.
"""

from __future__ import annotations
