"""RegistryService: answers the requests of the REST API on one broker.

Reads come from this broker's replay. A read that finds nothing waits until the replay has what is
committed now, and is answered again: a schema that was registered through another broker is found.

A write is decided by the primary, the leader of `_schemas`-0, one at a time:

1. It waits until its replay has reached the end of its log, committed or not.
2. It decides from that state, and appends where the log ends (`broker/apis/schema_registry`).
3. It answers once the records are committed and replayed. If others have appended in between, it
   begins again.

Every other broker passes the write on, and answers once its own replay includes it, so that a
client reads what it wrote. While there is no primary it waits, up to `schema.registry.timeout.ms`.
A write whose outcome is unknown is made again if that changes nothing; a deletion is not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import msgspec

from streamlog import repeated
from streamlog.broker.apis.schema_registry import EndMoved, OutcomeUnknown
from streamlog.errors import (
    ConnectionLost,
    LogError,
    NotLeader,
    RequestTimedOut,
    StreamlogError,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.registry_messages import (
    WriteToRegistryRequest,
    WriteToRegistryResponse,
)
from streamlog.records.builder import encode_batch
from streamlog.registry.examination import RESOLVED, SERIALIZED, Examiner, resolve
from streamlog.registry.refusals import (
    FORWARDING_FAILED,
    NO_PRIMARY,
    STORE_ERROR,
    TIMED_OUT,
    RegistryRefusal,
)
from streamlog.registry.rest_reads import PlainText, answer_read, answered_schema, not_found
from streamlog.registry.rest_requests import RestRequest, parse_request
from streamlog.registry.rest_writes import SchemaRequests, is_repeatable, is_write
from streamlog.registry.schemas_topic import PARTITION, SchemasTopic
from streamlog.registry.topic_records import TOPIC, TOPIC_CONFIGS, SchemasRecord
from streamlog.schemas.compatibility import CompatibilityLevel
from streamlog.schemas.schema import SchemaLimits

if TYPE_CHECKING:
    from streamlog.broker.broker import Broker
    from streamlog.registry.queries import Visible

R = TypeVar("R")
RETRY_MS: Final = 50
"""The pause before a write is tried again, while a leader is elected."""
LOOK_AGAIN_MS: Final = 2_000
"""How long a read that has found nothing waits for the replay."""
OK: Final = 200
NOT_FOUND: Final = 404
THREAD: Final = "streamlog-schemas"

_log = repeated.logger(__name__)


class RestAnswer(NamedTuple):
    """The answer to a request."""

    status: int
    body: bytes
    is_json: bool = True


class _Written(NamedTuple):
    answer: object
    end_offset: int


class _NotPrimary(StreamlogError):
    """Another broker has to perform the write; nothing was written."""


class RegistryService:
    """The schema registry of one broker."""

    def __init__(self, broker: Broker) -> None:
        config = broker.directory.config.registry
        self.topic = SchemasTopic(broker, CompatibilityLevel(config.compatibility_level))
        self.limits = SchemaLimits(text_bytes=config.schema_bytes_max)
        self.timeout_ms = config.timeout_ms
        self._access = broker.registry_access
        self._examiner = Examiner(self.limits)
        self._thread: Executor = ThreadPoolExecutor(1, thread_name_prefix=THREAD)
        self._writing = asyncio.Lock()
        self._schemas = SchemaRequests(self._examine, self.limits)

    @property
    def is_primary(self) -> bool:
        """Whether this broker decides on writes."""
        return self._access.leader(PARTITION) == self._access.node_id

    async def run(self) -> None:
        """Follow the topic, and perform writes that other brokers pass on, until cancelled."""
        try:
            with self._access.serving(self._perform):
                await self.topic.run()
        finally:
            # Not waited for: an examination has no end that the broker's stop could rely on.
            self._thread.shutdown(wait=False, cancel_futures=True)

    async def answer(self, request: RestRequest, visible: Visible) -> RestAnswer:
        """Answer a request of a client that may see and do what it asks for."""
        try:
            answer, _ = await self._respond(request, visible)
        except StreamlogError as error:
            return refusal_answer(error)
        return json_answer(answer)

    async def _respond(self, request: RestRequest, visible: Visible) -> _Written:
        if self.limits.text_bytes * BODY_FACTOR < len(request.body):
            raise too_large(self.limits)
        await self.topic.wait_until_ready(self.timeout_ms)
        if is_write(request):
            return await self._write(request)
        try:
            return _Written(await self._read(request, visible), -1)
        except RegistryRefusal as refusal:
            if refusal.status != NOT_FOUND or refusal.error_code == NOT_FOUND:
                raise
            # The primary has everything that was ever acknowledged. Elsewhere: 1. a producer
            # registers through broker 1, which answers; 2. its record reaches a consumer; 3. the
            # consumer asks broker 2 for the id, before the replay there has come so far.
            if self.is_primary or not await self._has_moved():
                raise
            return _Written(await self._read(request, visible), -1)

    async def _read(self, request: RestRequest, visible: Visible) -> object:
        if request.method != "GET":
            return await self._schemas.answer_check(self.topic.state, request)
        answer = answer_read(self.topic.state, request, visible)
        name = request.parameters.get("format", "")
        schema = answered_schema(answer)
        if not isinstance(answer, dict) or schema is None or name not in {SERIALIZED, RESOLVED}:
            return answer
        subject = str(answer.get("subject", ""))
        found = resolve(self.topic.state, subject, schema, is_new=False, limits=self.limits)
        text = await self._examine(lambda examiner: examiner.formatted(found, name))
        return {**answer, "schema": text}

    async def _has_moved(self) -> bool:
        try:
            return await self.topic.wait_for_end(LOOK_AGAIN_MS)
        except StreamlogError as error:
            _log.info("a read was answered without the newest records: %s", error)
            return False

    async def _examine(self, work: Callable[[Examiner], R]) -> R:
        """Run `work` in the thread that has the examiner."""
        loop = asyncio.get_running_loop()
        try:
            # The thread can't be stopped, but neither a client nor the writes behind this one wait
            # for a schema that takes longer than a write may take.
            async with asyncio.timeout(self.timeout_ms / 1000):
                return await loop.run_in_executor(self._thread, work, self._examiner)
        except TimeoutError:
            raise RegistryRefusal(
                TIMED_OUT, f"the schema was not examined within {self.timeout_ms} ms"
            ) from None

    # ---- writes ----

    async def _write(self, request: RestRequest) -> _Written:
        """Perform a write, here or by the primary.

        Raises:
            RegistryRefusal: it is refused, or was not performed in time.
        """
        # A worker that starts registers what is registered already: it needs no primary for that,
        # so an election does not keep it from starting.
        if request.method == "POST" and not self.is_primary:
            found = await self._schemas.find_registered(self.topic.state, request)
            if found is not None:
                return _Written(found, -1)
        deadline_ms = self._access.clock.now_ms() + self.timeout_ms
        reason = RegistryRefusal(NO_PRIMARY, f"{TOPIC} has no leader at present")
        while (left_ms := deadline_ms - self._access.clock.now_ms()) > 0:
            try:
                return await self._try_to_write(request, left_ms)
            except (_NotPrimary, NotLeader) as error:
                reason = RegistryRefusal(NO_PRIMARY, str(error))
            except (OutcomeUnknown, ConnectionLost, RequestTimedOut) as error:
                reason = RegistryRefusal(FORWARDING_FAILED, str(error))
                if not is_repeatable(request):
                    raise _unknown(error) from None
            await asyncio.sleep(RETRY_MS / 1000)
        raise reason

    async def _try_to_write(self, request: RestRequest, timeout_ms: int) -> _Written:
        leader = self._access.leader(PARTITION)
        if self._access.topic_id(TOPIC) is None or leader == self._access.node_id:
            return await self._write_here(request, timeout_ms)
        if leader is None:
            raise _NotPrimary(f"{TOPIC} has no leader at present")
        answer = await self._access.forward(
            leader,
            WriteToRegistryRequest(
                method=request.method,
                target=request.target,
                body=request.body,
                timeout_ms=timeout_ms,
            ),
            timeout_ms=timeout_ms,
        )
        # Not the primary any more, or not yet: nothing was written there, so it is tried again.
        if answer.error_code:
            raise _NotPrimary(answer.error_message or f"broker {leader} is not the primary")
        if answer.status != OK:
            raise _forwarded_refusal(answer)
        if answer.end_offset >= 0:
            await self._wait_for_own_replay(answer.end_offset, timeout_ms)
        return _Written(msgspec.Raw(answer.body), answer.end_offset)

    async def _wait_for_own_replay(self, end_offset: int, timeout_ms: int) -> None:
        try:
            await self.topic.wait_for(end_offset, timeout_ms)
        except RequestTimedOut as error:
            # The write is durable: the client learns that, although it may not read it here yet.
            _log.warning("a write is committed, and not replayed here: %s", error)

    async def _write_here(self, request: RestRequest, timeout_ms: int) -> _Written:
        """Decide a write as the primary.

        Raises:
            RegistryRefusal: it is refused.
            NotLeader, _NotPrimary: this broker is not the primary; nothing was written.
            OutcomeUnknown: the records may be committed or lost.
        """
        deadline_ms = self._access.clock.now_ms() + timeout_ms
        try:
            # One write at a time: each is decided from the state after the one before.
            async with asyncio.timeout(timeout_ms / 1000):
                await self._writing.acquire()
        except TimeoutError:
            raise RegistryRefusal(
                TIMED_OUT, f"earlier writes took more than {timeout_ms} ms"
            ) from None
        try:
            while (left_ms := deadline_ms - self._access.clock.now_ms()) > 0:
                written = await self._decide_once(request, left_ms)
                if written is not None:
                    return written
        finally:
            self._writing.release()
        raise RegistryRefusal(TIMED_OUT, f"others wrote to {TOPIC} for {timeout_ms} ms")

    async def _decide_once(self, request: RestRequest, timeout_ms: int) -> _Written | None:
        """Decide and append once; None if another record came in between."""
        topic, access = self.topic, self._access
        exists = access.topic_id(TOPIC) is not None
        # The end of the log, not the high watermark: what an earlier primary appended and did not
        # see committed may still be committed. It is waited for, and not decided around.
        position = access.led_end(PARTITION) if exists else 0
        if exists:
            self._check_topic()
            try:
                await topic.wait_for(position, timeout_ms)
            except RequestTimedOut as error:
                raise RegistryRefusal(TIMED_OUT, str(error)) from None
            # Beyond that end already: another program writes to the topic.
            if topic.position != position:
                return None
        decision = await self._schemas.decide_write(topic.state, request)
        # Nothing to write: the answer rests on records that are committed, since replays read no
        # others. It holds even if this broker is deposed by now.
        if not decision.records:
            return _Written(decision.answer, position)
        # Created by the first write, and not at the start: the first broker of a new cluster is
        # alone for a moment, and would make a topic with one replica.
        if not exists:
            await self._create_topic(timeout_ms)
            return None
        batch = self._encode(decision.records)
        try:
            end = await access.append(
                PARTITION, batch, expected_end=position, timeout_ms=timeout_ms
            )
        except EndMoved:
            # Decided from a state that is old by now; nothing was written.
            return None
        except NotLeader:
            raise
        except LogError as error:
            raise RegistryRefusal(STORE_ERROR, f"{TOPIC} has refused the write: {error}") from error
        await self._wait_for_own_replay(end, timeout_ms)
        return _Written(decision.answer, end)

    def _encode(self, records: tuple[SchemasRecord, ...]) -> bytes:
        wall_ms = self._access.clock.wall_ms()
        state = self.topic.state
        return encode_batch(
            [(wall_ms, state.key_bytes(each.key), each.encode_value(), ()) for each in records]
        )

    def _check_topic(self) -> None:
        """Raise RegistryRefusal if the topic can't hold a registry."""
        count = self._access.partition_count(TOPIC)
        if count != 1:
            raise RegistryRefusal(
                STORE_ERROR,
                f"{TOPIC} has {count} partitions, and a schema registry needs exactly one: copy its"
                " records to a topic with one partition",
            )
        policy = self._access.setting(TOPIC, "cleanup.policy")
        if policy != TOPIC_CONFIGS["cleanup.policy"]:
            raise RegistryRefusal(
                STORE_ERROR,
                f"{TOPIC} has cleanup.policy={policy or 'delete'}, which deletes schemas: set"
                " cleanup.policy=compact",
            )

    async def _create_topic(self, timeout_ms: int) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._access.create_topic(TOPIC, TOPIC_CONFIGS)
                while self._access.leader(PARTITION) is None:  # noqa: ASYNC110 - the metadata has no event
                    await asyncio.sleep(RETRY_MS / 1000)
        except TimeoutError:
            raise RegistryRefusal(
                TIMED_OUT, f"{TOPIC} could not be created within {timeout_ms} ms"
            ) from None
        if self._access.leader(PARTITION) != self._access.node_id:
            raise _NotPrimary(f"another broker leads {TOPIC}")

    async def _perform(self, message: WriteToRegistryRequest) -> WriteToRegistryResponse:
        """Perform a write that another broker has passed on."""
        timeout_ms = max(0, min(message.timeout_ms, self.timeout_ms))
        try:
            request = parse_request(message.method, message.target, bytes(message.body))
            # A broker of another release might send what this one does not know.
            if not is_write(request):
                raise not_found(request)
            await self.topic.wait_until_ready(timeout_ms)
            written = await self._write_here(request, timeout_ms)
        except (_NotPrimary, NotLeader) as error:
            return WriteToRegistryResponse(
                error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message=str(error)
            )
        except OutcomeUnknown as error:
            if is_repeatable(request):
                # The sender makes it again, by the next primary.
                return WriteToRegistryResponse(
                    error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER, error_message=str(error)
                )
            refused = refusal_answer(_unknown(error))
            return WriteToRegistryResponse(status=refused.status, body=refused.body)
        except StreamlogError as error:
            refused = refusal_answer(error)
            return WriteToRegistryResponse(status=refused.status, body=refused.body)
        body = json_answer(written.answer).body
        return WriteToRegistryResponse(status=OK, body=body, end_offset=written.end_offset)


BODY_FACTOR: Final = 4
"""How much larger than the largest schema a body may be: quotes in it are escaped."""


def too_large(limits: SchemaLimits) -> RegistryRefusal:
    """Return the refusal of a body that is larger than any schema may be."""
    return RegistryRefusal(
        42201,
        f"Invalid schema: the request is larger than {limits.text_bytes * BODY_FACTOR} bytes; a"
        f" schema may have {limits.text_bytes} (schema.registry.max.schema.bytes)",
    )


def json_answer(answer: object) -> RestAnswer:
    """Return an answer as it is sent."""
    if isinstance(answer, PlainText):
        return RestAnswer(OK, answer.encode(), is_json=False)
    return RestAnswer(OK, msgspec.json.encode(answer))


def refusal_answer(error: StreamlogError) -> RestAnswer:
    """Return an error as it is sent: Confluent's code and a sentence."""
    if not isinstance(error, RegistryRefusal):
        code = TIMED_OUT if isinstance(error, RequestTimedOut) else STORE_ERROR
        if code == STORE_ERROR:
            _log.error("the schema registry could not answer: %s", error)
        error = RegistryRefusal(code, str(error))
    content = {"error_code": error.error_code, "message": str(error)}
    return RestAnswer(error.status, msgspec.json.encode(content))


class _Refused(msgspec.Struct):
    error_code: int = STORE_ERROR
    message: str = ""


def _unknown(error: StreamlogError) -> RegistryRefusal:
    """Return the refusal of a deletion that may have happened."""
    code = FORWARDING_FAILED if isinstance(error, ConnectionLost) else TIMED_OUT
    return RegistryRefusal(code, f"{error}; whether the deletion happened is not known")


def _forwarded_refusal(answer: WriteToRegistryResponse) -> RegistryRefusal:
    """Return the primary's refusal."""
    refused = msgspec.json.decode(answer.body, type=_Refused)
    return RegistryRefusal(refused.error_code, refused.message)
