"""ACLs and other projects' clients: their admin tools create them, their errors report them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from tests.broker.process import BrokerProcess
from tests.conformance.clients import (
    Access,
    AioKafka,
    Confluent,
    KafkaPython,
    Sent,
    Streamlog,
    kafka,
)
from tests.conformance.test_security import PATIENCE_S, add_user

one_process = pytest.mark.xdist_group("conformance-acls")


def access(user: str) -> Access:
    return Access("SASL_PLAINTEXT", "", "SCRAM-SHA-256", user, f"password of {user}")


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    data = tmp_path_factory.mktemp("guarded") / "data"
    for user in ("alice", "root"):
        add_user(data, user, f"password of {user}")
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "authorizer.class.name": "standard",
        "super.users": "User:root",
    }
    with BrokerProcess(data, settings=settings) as running:
        yield running


def allow(broker: BrokerProcess, *bindings: AclBinding) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.address, **access("root").confluent})
    for done in admin.create_acls(list(bindings)).values():
        done.result(PATIENCE_S)
    return admin


def binding(kind: ResourceType, name: str, operation: AclOperation) -> AclBinding:
    return AclBinding(
        kind,
        name,
        ResourcePatternType.PREFIXED,
        "User:alice",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )


def refused_by_confluent(broker: BrokerProcess, topic: str, group: str) -> tuple[str, str]:
    settings = {"bootstrap.servers": broker.address, **access("alice").confluent}
    delivery_errors: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, b"x", on_delivery=lambda error, _: delivery_errors.append(error))
    producer.flush(PATIENCE_S)
    consumer = confluent_kafka.Consumer({**settings, "group.id": group})
    consumer.subscribe([topic])
    message = consumer.poll(PATIENCE_S)
    while message is not None and "GROUP" not in message.error().name():
        message = consumer.poll(PATIENCE_S)
    consumer.close()
    assert message is not None
    return delivery_errors[0].name(), message.error().name()


def refused_by_kafka_python(broker: BrokerProcess, topic: str, group: str) -> tuple[str, str]:
    settings = {"bootstrap_servers": broker.address, **access("alice").kafka_python}
    producer = kafka.KafkaProducer(**settings)
    with pytest.raises(kafka.errors.KafkaError) as produce_error:
        producer.send(topic, b"x").get(PATIENCE_S)
    producer.close()
    consumer = kafka.KafkaConsumer(group_id=group, **settings)
    with pytest.raises(kafka.errors.KafkaError) as read:
        consumer.committed(kafka.TopicPartition(topic, 0))
    consumer.close(autocommit=False)
    return type(produce_error.value).__name__, type(read.value).__name__


def refused_by_aiokafka(broker: BrokerProcess, topic: str, group: str) -> tuple[str, str]:
    settings = {"bootstrap_servers": broker.address, **access("alice").aiokafka}

    async def main() -> tuple[str, str]:
        async with aiokafka.AIOKafkaProducer(**settings) as producer:
            with pytest.raises(aiokafka.errors.KafkaError) as produce_error:
                await producer.send_and_wait(topic, b"x")
        async with aiokafka.AIOKafkaConsumer(group_id=group, **settings) as consumer:
            partition = aiokafka.TopicPartition(topic, 0)
            consumer.assign([partition])
            with pytest.raises(aiokafka.errors.KafkaError) as read:
                await consumer.committed(partition)
        return type(produce_error.value).__name__, type(read.value).__name__

    return asyncio.run(main())


def refused_by_streamlog(broker: BrokerProcess, topic: str, group: str) -> tuple[str, str]:
    from streamlog.errors import NotAuthorized  # noqa: PLC0415 - beside it
    from streamlog.log import Log  # noqa: PLC0415 - beside it
    from streamlog.record import TopicPartition  # noqa: PLC0415 - two of that name

    async def main() -> tuple[str, str]:
        url = f"kafka://{broker.address}"
        async with Log.open(url, security=access("alice").streamlog) as log:
            async with log.producer() as producer:
                with pytest.raises(NotAuthorized) as produce_error:
                    await (await producer.send(topic, b"x"))
            async with log.consumer(group_id=group) as consumer:
                with pytest.raises(NotAuthorized) as read:
                    await consumer.committed([TopicPartition(topic, 0)])
        return str(produce_error.value), str(read.value)

    return asyncio.run(main())


REFUSED_BY: dict[str, tuple[Callable[[BrokerProcess, str, str], tuple[str, str]], str, str]] = {
    "confluent": (
        refused_by_confluent,
        "TOPIC_AUTHORIZATION_FAILED",
        "GROUP_AUTHORIZATION_FAILED",
    ),
    "kafka-python": (
        refused_by_kafka_python,
        "TopicAuthorizationFailedError",
        "GroupAuthorizationFailedError",
    ),
    "aiokafka": (
        refused_by_aiokafka,
        "TopicAuthorizationFailedError",
        "GroupAuthorizationFailedError",
    ),
    "streamlog": (
        refused_by_streamlog,
        "TOPIC_AUTHORIZATION_FAILED (29): not allowed on this topic",
        "GROUP_AUTHORIZATION_FAILED (30): not allowed on this group",
    ),
}


@one_process
@pytest.mark.parametrize("library", REFUSED_BY)
def test_a_missing_acl_is_reported_by_every_client(guarded: BrokerProcess, library: str) -> None:
    refused_by, of_topic, of_group = REFUSED_BY[library]
    produce_error, read = refused_by(guarded, f"closed.{library}", f"closed.{library}")
    assert of_topic in produce_error
    assert of_group in read


@one_process
@pytest.mark.parametrize("library", [Confluent, KafkaPython, AioKafka, Streamlog])
def test_an_allowed_client_can_write_and_read(
    guarded: BrokerProcess, library: type[Confluent]
) -> None:
    client = library(access("alice"))
    prefix = f"open.{client.name}"
    admin = allow(
        guarded,
        binding(ResourceType.TOPIC, prefix, AclOperation.READ),
        binding(ResourceType.TOPIC, prefix, AclOperation.WRITE),
        binding(ResourceType.TOPIC, prefix, AclOperation.CREATE),
        binding(ResourceType.GROUP, prefix, AclOperation.READ),
    )
    records = [Sent(0, b"k", str(number).encode(), 1_000 + number) for number in range(10)]
    client.produce(guarded.address, f"{prefix}.topic", "none", records)
    found = client.consume(
        guarded.address, [f"{prefix}.topic"], f"{prefix}.group", lambda got: got >= 10
    )
    assert found[f"{prefix}.topic"] == records
    about = AclBindingFilter(
        ResourceType.ANY,
        prefix,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    assert len(admin.describe_acls(about).result(PATIENCE_S)) == 4
    (deleted,) = admin.delete_acls([about]).values()
    assert len(deleted.result(PATIENCE_S)) == 4
    assert admin.describe_acls(about).result(PATIENCE_S) == []
