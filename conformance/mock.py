"""librdkafka's mock cluster: brokers in C, in the memory of this process, with faults to order.

confluent-kafka brings the library; what it has no call for is reached by ctypes. The mock knows no
admin requests, and it misreads the group requests in their flexible versions (it takes their
lengths for four bytes), so those are not offered.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import TracebackType
from typing import Self

import confluent_kafka

FLEXIBLE_FROM = {11: 6, 12: 4, 13: 4, 14: 4}
"""The group requests whose flexible versions it misreads, and where those begin."""
EVERY_CLIENT = ""
LATE_FOLLOWER = (
    "its brokers refuse a member that sends SyncGroup after the leader of its group has, with "
    "INVALID_REQUEST, where Kafka gives it its share; which of them comes first is chance"
)
NO_CHECKSUMS = "the markers that its brokers write carry no checksum, and this client checks it"
BEYOND: dict[str, dict[str, str]] = {
    "offset of a time": {EVERY_CLIENT: "its brokers look up no times"},
    "group": {
        "aiokafka": LATE_FOLLOWER,
        "kafka-python": LATE_FOLLOWER,
        "kcat": "its brokers refuse commits while a group rebalances, and kcat commits only then",
        "streamlog": LATE_FOLLOWER,
    },
    "transactions": {"aiokafka": NO_CHECKSUMS, "kafka-python": NO_CHECKSUMS},
    "offsets in a transaction": {
        EVERY_CLIENT: "its brokers forget positions that are committed with a transaction"
    },
    "aborts unseen": {EVERY_CLIENT: "its brokers do not name aborted transactions to readers"},
    "fencing": {EVERY_CLIENT: "its brokers let both writers with one transactional id commit"},
    "move group offsets": {EVERY_CLIENT: "its brokers take commits of members only"},
}
"""What it has the APIs for and does not do as Kafka does, by feature and client: each was seen in
raw requests, by `tests/conformance/test_mock.py`."""
_PRODUCER = 0
_ERROR_BYTES = 512


def beyond(feature: str, client: str) -> str:
    """Why this client can't be tried with this feature, or nothing."""
    reasons = BEYOND.get(feature, {})
    return reasons.get(EVERY_CLIENT) or reasons.get(client, "")


class MockCluster:
    """Brokers 1 to `brokers`, until it is closed."""

    def __init__(self, brokers: int = 1) -> None:
        folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
        self._library = ctypes.CDLL(str(next(folder.glob("librdkafka-*.so*"))))
        for name in ("conf_new", "new", "mock_cluster_new", "mock_cluster_bootstraps"):
            getattr(self._library, f"rd_kafka_{name}").restype = ctypes.c_void_p
        conf = ctypes.c_void_p(self._library.rd_kafka_conf_new())
        text = ctypes.create_string_buffer(_ERROR_BYTES)
        self._client = ctypes.c_void_p(
            self._library.rd_kafka_new(_PRODUCER, conf, text, _ERROR_BYTES)
        )
        if not self._client:
            raise RuntimeError(f"librdkafka makes no client: {text.value.decode()}")
        new = self._library.rd_kafka_mock_cluster_new
        self._cluster = ctypes.c_void_p(new(self._client, brokers))
        self.delay_first_join(0)
        for key, version in FLEXIBLE_FROM.items():
            self.serve(key, 0, version - 1)
        places = ctypes.c_char_p(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster))
        self.address = (places.value or b"").decode()
        """HOST:PORT of each broker, with commas between them."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop all brokers."""
        self._call("cluster_destroy")
        self._library.rd_kafka_destroy(self._client)

    def make_topic(self, name: str, partitions: int, replicas: int) -> None:
        """Else it is made when somebody asks for it."""
        self._call("topic_create", name.encode(), partitions, replicas)

    def serve(self, api_key: int, low: int, high: int) -> None:
        """Serve these versions from now on; -1 for none."""
        versions = map(ctypes.c_int16, (api_key, low, high))
        self._call("set_apiversion", *versions)

    def refuse(self, api_key: int, *codes: int) -> None:
        """Answer the next requests of this kind with these errors."""
        errors = (ctypes.c_int * len(codes))(*codes)
        count = ctypes.c_size_t(len(codes))
        self._call("push_request_errors_array", ctypes.c_int16(api_key), count, errors)

    def delay_first_join(self, delay_ms: int) -> None:
        """How long a group waits for others when its first member comes."""
        self._call("group_initial_rebalance_delay_ms", delay_ms)

    def lead(self, topic: str, partition: int, broker: int) -> None:
        """Move a partition to another broker."""
        self._call("partition_set_leader", topic.encode(), partition, broker)

    def coordinate(self, kind: str, key: str, broker: int) -> None:
        """Move a group or a transaction to another broker."""
        self._call("coordinator_set", kind.encode(), key.encode(), broker)

    def down(self, broker: int) -> None:
        """Stop a broker."""
        self._call("broker_set_down", broker)

    def up(self, broker: int) -> None:
        """Start it again."""
        self._call("broker_set_up", broker)

    def _call(self, name: str, *arguments: object) -> None:
        getattr(self._library, f"rd_kafka_mock_{name}")(self._cluster, *arguments)
