"""A Containerfile, and a compose file of three brokers with Prometheus and Grafana."""

from __future__ import annotations

import json
from collections.abc import Iterator

USER = 10_001
"""The user of the processes in a container, which owns `/data`."""
LISTENER_PORT, WEB_PORT = 9092, 9300
CLUSTER_ID_LENGTH = 22
"""A UUID in base64, without padding."""

CONTAINERFILE = """\
# podman build -t streamlog -f Containerfile . ; docker build -t streamlog -f Containerfile .
# One broker: docker run -p 127.0.0.1:{listener}:{listener} -v streamlog:/data streamlog
FROM docker.io/library/python:3.13-slim
RUN pip install --no-cache-dir '{distribution}[{extras}]{version}' \\
 && useradd --uid {user} --create-home --shell /usr/sbin/nologin streamlog \\
 && install -d -o streamlog -g streamlog /data
COPY <<END /etc/streamlog/broker.properties
log.dirs=/data/broker
listeners=PLAINTEXT://0.0.0.0:{listener}
advertised.listeners=PLAINTEXT://localhost:{listener}
web.listener=0.0.0.0:{web}
END
USER {user}:{user}
WORKDIR /data
VOLUME /data
EXPOSE {listener} {web}
STOPSIGNAL SIGTERM
# The image has no curl. A process that listens on another port needs another check.
HEALTHCHECK --start-period=60s --interval=10s --timeout=5s CMD ["python", "-c", \\
 "import urllib.request; urllib.request.urlopen('http://127.0.0.1:{web}/live', timeout=4)"]
ENTRYPOINT ["streamlog"]
CMD ["broker", "--config", "/etc/streamlog/broker.properties"]
"""

BROKER = """\
  {host}:
    image: {image}
    hostname: {host}
    entrypoint: ["/bin/sh", "-euc"]
    command:
      - |
{script}
    # The root file system is not written to.
    read_only: true
    tmpfs: [/tmp]
    volumes: ["{host}:/data"]
    ports: ["127.0.0.1:{outside}:{outside}"]
    restart: on-failure
    stop_grace_period: 60s
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
"""

START = """\
# The first start prepares the directory; settings of the node are written at each start.
if [ ! -e {data}/meta.properties ]; then
  rm -f {settings}
  streamlog cluster init --node {node} --data {data} --config {settings} --cluster-id {cluster} \\
    --voters {voters}
fi
cat > {settings} <<END
node.id={node}
log.dirs={data}
controller.quorum.voters={voters}
listeners=BROKERS://{host}:{listener},HOST://0.0.0.0:{outside}
advertised.listeners=BROKERS://{host}:{listener},HOST://localhost:{outside}
listener.security.protocol.map=BROKERS:PLAINTEXT,HOST:PLAINTEXT
inter.broker.listener.name=BROKERS
controller.listener.names=BROKERS
END
exec streamlog broker --config {settings} --web {web}
"""

WATCHING = """\
  prometheus:
    image: docker.io/prom/prometheus
    command: [--config.file=/etc/prometheus/prometheus.yml, --storage.tsdb.path=/prometheus]
    volumes:
      - ./prometheus.yml:/etc/prometheus/prometheus.yml:ro
      - ./streamlog-alerts.yml:/etc/prometheus/streamlog-alerts.yml:ro
      - prometheus:/prometheus
    ports: ["127.0.0.1:9090:9090"]
  grafana:
    image: docker.io/grafana/grafana
    environment:
      GF_AUTH_ANONYMOUS_ENABLED: "true"
      GF_AUTH_ANONYMOUS_ORG_ROLE: Viewer
    configs:
      - {source: datasource, target: /etc/grafana/provisioning/datasources/streamlog.yml}
      - {source: dashboards, target: /etc/grafana/provisioning/dashboards/streamlog.yml}
    volumes: ["./dashboards:/var/lib/grafana/dashboards:ro"]
    ports: ["127.0.0.1:3000:3000"]

configs:
  datasource:
    content: |
      apiVersion: 1
      datasources:
        - {name: Prometheus, type: prometheus, url: "http://prometheus:9090", isDefault: true}
  dashboards:
    content: |
      apiVersion: 1
      providers:
        - {name: streamlog, type: file, options: {path: /var/lib/grafana/dashboards}}

"""


def containerfile(*, distribution: str, release: str, extras: str) -> str:
    """Return a Containerfile for brokers, apps and connectors.

    Args:
        distribution: the package's name on the index.
        release: the release of streamlog; empty for the newest one.
        extras: the extras of the package to install, separated by commas.
    """
    return CONTAINERFILE.format(
        distribution=distribution,
        extras=extras,
        version=f"=={release}" if release else "",
        user=USER,
        listener=LISTENER_PORT,
        web=WEB_PORT,
    )


def start_script(
    node: int,
    hosts: dict[int, str],
    *,
    cluster: str,
    directory: str = "/data",
    first_port: int = 9092,
    listener: int = 19092,
    web: str = f"0.0.0.0:{WEB_PORT}",
) -> str:
    """Return the script that starts the broker of a container.

    Args:
        node: the number of this broker.
        hosts: by number, the names of all brokers; all of them vote.
        cluster: the cluster's id.
        directory: where the volume is mounted.
        first_port: the first broker's port for clients on the machine; the others have the next.
        listener: the port for clients in containers and for other brokers.
        web: HOST:PORT of /metrics.
    """
    # Brokers meet at one listener, clients outside at another, since the names differ.
    return START.format(
        node=node,
        host=hosts[node],
        cluster=cluster,
        voters=",".join(f"{number}@{host}:{listener}" for number, host in hosts.items()),
        data=f"{directory}/broker",
        settings=f"{directory}/broker.properties",
        listener=listener,
        outside=first_port + node - min(hosts),
        web=web,
    )


def compose(*, brokers: int, image: str, cluster: str, first_port: int = 9092) -> str:
    """Return a compose.yaml of brokers, Prometheus and Grafana.

    Args:
        brokers: how many there are; all of them vote.
        image: the image that the Containerfile built.
        cluster: the cluster's id.
        first_port: the first broker's port for clients on the machine.
    """
    # Containers of a project find each other by the names of their services.
    hosts = {number: f"broker-{number}" for number in range(1, brokers + 1)}
    return "".join(_compose(hosts, json.dumps(image), cluster, first_port))


def _compose(hosts: dict[int, str], image: str, cluster: str, first_port: int) -> Iterator[str]:
    yield "name: streamlog\n\nservices:\n"
    for number, host in hosts.items():
        script = start_script(number, hosts, cluster=cluster, first_port=first_port)
        # Compose replaces what begins with a $, so the shell's are doubled.
        lines = (f"        {line}\n" for line in script.replace("$", "$$").splitlines())
        yield BROKER.format(
            host=host,
            image=image,
            outside=first_port + number - 1,
            script="".join(lines).rstrip("\n"),
        )
    # It has no values to fill in, so its braces are those of YAML.
    yield WATCHING
    yield "volumes:\n"
    yield from (f"  {name}:\n" for name in (*hosts.values(), "prometheus"))
