"""nginx: serves a folder, writes an access log, reopens it on USR1."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from tests.servers.server_process import ServerProcess

CONFIG = """\
daemon off;
{account}
worker_processes 1;
pid {directory}/nginx.pid;
error_log {directory}/error.log;
events {{ worker_connections 256; }}
http {{
  {http}
  access_log {directory}/access.log;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  keepalive_requests 1000000;
  server {{
    listen 127.0.0.1:{port};
    root {directory}/www;
    {server}
  }}
}}
"""


class NginxServer(ServerProcess):
    """An nginx that serves `www` and logs to `access_log`.

    `http` and `server` are lines for the blocks of these names.
    """

    name = "nginx"
    package = "nginx"

    def __init__(self, server: str = "", *, http: str = "") -> None:
        super().__init__()
        self.http = http
        self.server = server

    @property
    def www(self) -> Path:
        return self.directory / "www"

    @property
    def access_log(self) -> Path:
        return self.directory / "access.log"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        self.www.mkdir()
        self.directory.chmod(0o755)

    def command(self) -> Sequence[str]:
        config = self.directory / "nginx.conf"
        account = "user root;" if os.geteuid() == 0 else ""
        config.write_text(
            CONFIG.format(
                directory=self.directory,
                port=self.port,
                account=account,
                http=self.http,
                server=self.server,
            )
        )
        errors = str(self.directory / "error.log")
        return [str(self.program), "-e", errors, "-p", str(self.directory), "-c", str(config)]

    def answers(self) -> bool:
        return self.accepts()

    def reopen_logs(self) -> None:
        """Let nginx reopen its files, as logrotate does after it has renamed them."""
        self.signal(signal.SIGUSR1)

    def kill(self) -> None:
        """End the server and its worker processes, which SIGKILL would leave behind."""
        self.end(signal.SIGTERM)
