"""Manifests for Kubernetes: brokers as a StatefulSet, and the workers of an app as another one.

A broker's pod counts as started once `cluster status` proves the whole cluster well. So Kubernetes
replaces one broker at a time, and takes the next one only when that loses nothing. A broker
serves clients before its pod counts as started.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from streamlog.generate.containers import LISTENER_PORT, USER, WEB_PORT

POD = """\
      securityContext:
        runAsNonRoot: true
        runAsUser: {user}
        runAsGroup: {user}
        fsGroup: {user}
        seccompProfile: {{type: RuntimeDefault}}
      # Two brokers, or two workers, on one machine would be lost together.
      topologySpreadConstraints:
        - maxSkew: 1
          topologyKey: kubernetes.io/hostname
          whenUnsatisfiable: ScheduleAnyway
          labelSelector: {{matchLabels: {{app: {name}}}}}
      terminationGracePeriodSeconds: 60
"""

CONTAINER = """\
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: {{drop: [ALL]}}
          resources:
            requests: {{cpu: "{cpu}", memory: {memory}}}
            limits: {{memory: {memory}}}
          readinessProbe: {{httpGet: {{path: /ready, port: web}}, periodSeconds: 5}}
          livenessProbe:
            httpGet: {{path: /live, port: web}}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
"""

BROKERS = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  # Settings of all brokers: docs/configuration.md. A change needs a rolling restart:
  # kubectl rollout restart statefulset/{name}
  broker.properties: |
    listeners=PLAINTEXT://0.0.0.0:{listener}
    controller.quorum.voters={voters}
  # Set it to "yes" once all pods have started for the first time. A voter that has lost its disk
  # must rejoin: if it starts as a new one, it votes although it has forgotten what it had accepted.
  exists: "no"
  start: |
{script}
---
# The addresses of single brokers, also of those that are not ready: the quorum forms from them.
apiVersion: v1
kind: Service
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: {name}}}
  ports:
    - {{name: log, port: {listener}}}
    - {{name: web, port: {web}}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {name}
spec:
  maxUnavailable: 1
  selector: {{matchLabels: {{app: {name}}}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {name}
spec:
  serviceName: {name}
  replicas: {brokers}
  # Two of three have to run before any of them is ready.
  podManagementPolicy: Parallel
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
{pod}\
      containers:
        - name: broker
          image: {image}
          command: ["/bin/sh", "-eu", "/etc/streamlog/start"]
          env:
            - {{name: POD, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}
            - {{name: CLUSTER_ID, value: "{cluster}"}}
            - {{name: VOTERS, value: "{voters}"}}
            - {{name: DOMAIN, value: "{name}"}}
          ports:
            - {{name: log, containerPort: {listener}}}
            - {{name: web, containerPort: {web}}}
{container}\
          # The pod has started once every broker reports that all is well. That may take as long as
          # a replica needs to catch up; a probe that gave up would restart a working broker.
          startupProbe:
            exec: {{command: [streamlog, cluster, status, --log, "kafka://127.0.0.1:{listener}"]}}
            periodSeconds: 15
            timeoutSeconds: 15
            failureThreshold: 20000
          volumeMounts:
            - {{name: data, mountPath: /data}}
            - {{name: config, mountPath: /etc/streamlog}}
            - {{name: tmp, mountPath: /tmp}}
      volumes:
        - {{name: config, configMap: {{name: {name}}}}}
        - {{name: tmp, emptyDir: {{}}}}
  volumeClaimTemplates:
    - metadata: {{name: data}}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {{requests: {{storage: {storage}}}}}
"""

START = """\
# The pod NAME-0 is node 1.
node=$((${POD##*-} + 1))
data=/data/broker
{
  cat /etc/streamlog/broker.properties
  echo "node.id=$node"
  echo "log.dirs=$data"
  echo "advertised.listeners=PLAINTEXT://$POD.$DOMAIN:PORT"
} > /tmp/broker.properties
if [ ! -e "$data/meta.properties" ]; then
  rm -f /tmp/first.properties
  set -- --node "$node" --data "$data" --config /tmp/first.properties --voters "$VOTERS"
  if [ "$(cat /etc/streamlog/exists)" = yes ]; then set -- "$@" --rejoin; fi
  streamlog cluster init --cluster-id "$CLUSTER_ID" "$@"
fi
exec streamlog broker --config /tmp/broker.properties --web "0.0.0.0:WEB"
"""

WORKERS = """\
# The addresses of single workers: they ask each other for rows of tables.
apiVersion: v1
kind: Service
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{app: {name}}}
  ports:
    - {{name: web, port: {web}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  name: {name}
spec:
  serviceName: {name}
  replicas: {workers}
  podManagementPolicy: Parallel
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
{pod}\
      containers:
        - name: worker
          image: {image}
          args: {args}
          # The state of tasks is in ./.streamlog.
          workingDir: /data
          ports:
            - {{name: web, containerPort: {web}}}
{container}\
          volumeMounts:
            - {{name: data, mountPath: /data}}
            - {{name: tmp, mountPath: /tmp}}
      volumes:
        - {{name: tmp, emptyDir: {{}}}}
  # A worker with its state on a volume restores nothing at a restart.
  volumeClaimTemplates:
    - metadata: {{name: data}}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {{requests: {{storage: {storage}}}}}
"""


def start_script(*, listener: int = LISTENER_PORT, web: int = WEB_PORT) -> str:
    """Return the script that starts the broker of a pod."""
    # `format` would take the braces of the shell for its own.
    return START.replace("PORT", str(listener)).replace("WEB", str(web))


def broker_manifests(*, name: str, image: str, brokers: int, storage: str, cluster: str) -> str:
    """Return the manifests of a cluster of brokers.

    Args:
        name: the name of the StatefulSet and of its Service.
        image: the image that the Containerfile built.
        brokers: how many there are; all of them vote.
        storage: the size of each broker's volume, as a quantity of Kubernetes, such as 100Gi.
        cluster: the cluster's id.
    """
    # A pod of a StatefulSet has a name of its own below that of the Service, even before it runs.
    voters = ",".join(
        f"{number + 1}@{name}-{number}.{name}:{LISTENER_PORT}" for number in range(brokers)
    )
    # Requests that fit a small cluster; limits of CPU would only add pauses.
    return BROKERS.format(
        name=name,
        image=json.dumps(image),
        brokers=brokers,
        storage=storage,
        cluster=cluster,
        voters=voters,
        listener=LISTENER_PORT,
        web=WEB_PORT,
        script="".join(f"    {line}\n" for line in start_script().splitlines()).rstrip("\n"),
        pod=POD.format(user=USER, name=name),
        container=CONTAINER.format(cpu="500m", memory="2Gi"),
    )


def worker_manifests(
    *, name: str, image: str, workers: int, storage: str, arguments: Sequence[str]
) -> str:
    """Return the manifests of an app's workers.

    Args:
        name: the name of the StatefulSet and of its Service.
        image: an image with streamlog and the app.
        workers: how many there are.
        storage: the size of each worker's volume, as a quantity of Kubernetes.
        arguments: the arguments of `streamlog`.
    """
    # Workers ask each other for rows, so the port is open to other pods.
    return WORKERS.format(
        name=name,
        image=json.dumps(image),
        workers=workers,
        storage=storage,
        args=json.dumps([*arguments, "--web", f"0.0.0.0:{WEB_PORT}", "--web-insecure"]),
        web=WEB_PORT,
        pod=POD.format(user=USER, name=name),
        container=CONTAINER.format(cpu="500m", memory="1Gi"),
    )
