"""HTTP access: who may use the HTTP servers of workers, and how the connection is encrypted.

One way for the REST API of a Connect service (`--rest`) and the server of an app's worker
(`--web`): users in a file, certificates in PEM files, and signatures between workers. An address
that other machines reach needs users and TLS, unless the operator says that it is insecure.
"""

from __future__ import annotations
