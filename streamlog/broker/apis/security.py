"""Requests about ACLs and SCRAM users, and the authorization of every request.

`RequestAuthorization` takes a request through the rules of `broker/security` to its handler, and
takes the response back through them.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from streamlog.broker.config.security import AUTHORIZER_NONE
from streamlog.broker.future_responses import has_failed, is_abandoned
from streamlog.broker.quorum.controller.security_control import filter_of
from streamlog.broker.security.acl_authorizer import Access, Authorizer, super_users_of
from streamlog.broker.security.principals import IN_PROCESS
from streamlog.broker.security.rules import RULES
from streamlog.broker.security.topic_rules import may_read, may_write
from streamlog.errors import LogError, NotAuthorized
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import FetchRequest, ProduceRequest
from streamlog.protocol.messages.sasl_acls_quotas import (
    AclDescription,
    CredentialInfo,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.config.security import SecurityConfig
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata
    from streamlog.broker.replication.partition import Partitions
    from streamlog.broker.security.users import Credentials
    from streamlog.protocol.produce_runs import ProduceRun


class AuthorizationContext(Protocol):
    """The sender of a request; see `RequestContext`."""

    @property
    def principal(self) -> str:
        """Who it is."""
        ...

    @property
    def client_host(self) -> str:
        """Where from."""
        ...

    @property
    def version(self) -> int:
        """In which version of the API."""
        ...


class RequestAuthorization:
    """Authorizes each request before its handler, by the rules of `broker/security`.

    Requests that repeat earlier ones (`produce_runs`, `fetch_patterns`) are only let through here,
    by the predicates that the rules use. They are never refused: the caller sends what is not let
    through the full way, where the rule of its request refuses it.
    """

    def __init__(self, acls: AclRequests, partitions: Partitions) -> None:
        self._acls = acls
        self._partitions = partitions

    def begin(
        self,
        request: Any,  # noqa: ANN401
        context: AuthorizationContext,
        handler: Callable[..., Any],
    ) -> Any:  # noqa: ANN401
        """What becomes of a request.

        Raises:
            NotAuthorized: it can't be told but by hanging up.
        """
        access = self._access(context)
        if access is None:
            return handler(request, context)
        return _judged(request, access, partial(handler, request, context))

    def count_allowed(self, run: ProduceRun, context: AuthorizationContext) -> int:
        """Return how many requests of a run, from its first on, the principal may make."""
        access = self._access(context)
        if access is None:
            return len(run.requests)
        allowed: dict[str, bool] = {}
        for count, (pattern, *_) in enumerate(run.requests):
            topic = pattern.topic
            if topic not in allowed:
                allowed[topic] = may_write(topic, access)
            if not allowed[topic]:
                return count
        return len(run.requests)

    def allows_repeat(
        self, request: ProduceRequest | FetchRequest, context: AuthorizationContext
    ) -> bool:
        """Return whether the principal may make every part of a request."""
        if self._acls.authorizer is None:
            return True
        access = self._access(context)
        if access is None:
            return True
        if isinstance(request, ProduceRequest):
            return all(may_write(topic.name, access) for topic in request.topic_data)
        return all(may_read(topic, access) for topic in request.topics)

    def _access(self, context: AuthorizationContext) -> Access | None:
        """Return what the principal may do; None if that is everything."""
        authorizer = self._acls.authorizer
        if authorizer is None or context.principal == IN_PROCESS:
            return None
        return Access(
            authorizer=authorizer,
            principal=context.principal,
            host=context.client_host.removeprefix("/"),
            version=context.version,
            exists=lambda name: self._partitions.topic_id(name) is not None,
            name_of=self._partitions.name_of,
            topics=self._partitions.names,
        )


def _judged(request: Any, access: Access, answer: Callable[..., Any]) -> Any:  # noqa: ANN401 - as above
    rule = RULES.get(type(request))
    if rule is None:
        raise NotAuthorized(f"there is no rule who may send {type(request).__name__}")
    verdict = rule(request, access)
    if verdict.answer is not None:
        return verdict.answer
    if verdict.readable is not None:
        return answer(verdict.readable)
    given = answer()
    finish = verdict.finish
    if finish is None or given is None:
        return given
    if isinstance(given, asyncio.Future):
        return _finished(given, finish)
    finish(given)
    return given


def _finished(
    given: asyncio.Future[Message], finish: Callable[[Any], None]
) -> asyncio.Future[Message]:
    """The answer once it is there, ready to be seen."""
    seen: asyncio.Future[Message] = given.get_loop().create_future()

    def hand_on(_: object) -> None:
        if is_abandoned(seen, given) or has_failed(seen, given):
            return
        response = given.result()
        finish(response)
        seen.set_result(response)

    given.add_done_callback(hand_on)
    # Whoever answers has to know that nobody waits.
    seen.add_done_callback(lambda _: given.cancel() if seen.cancelled() else None)
    return seen


DISABLED = "this broker checks no ACLs: set authorizer.class.name=standard"


class AclRequests:
    """The ACLs of this broker; `authorizer` decides by them, None without authorization."""

    def __init__(
        self, metadata: ClusterMetadata, config: SecurityConfig, *, peers: frozenset[str]
    ) -> None:
        """Go by the ACLs that the metadata knows; `peers` are super users, too: the other brokers.

        Raises:
            ConfigError: a super user is no principal.
        """
        self._metadata = metadata
        self.authorizer: Authorizer | None = None
        if config.authorizer != AUTHORIZER_NONE:
            self.authorizer = Authorizer(
                metadata.acls(),
                super_users=super_users_of(config.super_users) | peers,
                allow_if_none_found=config.allow_if_no_acl,
            )

    def on_changed(self) -> None:
        """The metadata knows others."""
        if self.authorizer is not None:
            self.authorizer.replace(self._metadata.acls())

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Return the handler of each request type."""
        return {
            DescribeAclsRequest: lambda request, _: self.describe(request),
        }

    def describe(self, request: DescribeAclsRequest) -> DescribeAclsResponse:
        """Those that a filter matches, by resource."""
        try:
            found = self._required().acls.matching(filter_of(request))
        except LogError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=str(error))
        return DescribeAclsResponse(
            error_message=None,
            resources=[
                DescribeAclsResource(
                    resource_type=kind,
                    resource_name=name,
                    pattern_type=pattern,
                    acls=[
                        AclDescription(
                            principal=acl.principal,
                            host=acl.host,
                            operation=acl.operation,
                            permission_type=acl.permission,
                        )
                        for acl in acls
                    ],
                )
                for (kind, name, pattern), acls in groupby(
                    found, key=lambda acl: (acl.resource_type, acl.name, acl.pattern)
                )
            ],
        )

    def _required(self) -> Authorizer:
        if self.authorizer is None:
            raise error_for(ErrorCode.SECURITY_DISABLED, DISABLED)
        return self.authorizer


class UserRequests:
    """The users of the cluster, as this broker knows them."""

    def __init__(self, metadata: ClusterMetadata, own: Credentials) -> None:
        """`own` are users that this broker knows by itself; they come before others."""
        self._metadata = metadata
        self._own = own
        self._kept = metadata.users()
        self.users = self._kept.join(own)
        """Whom it knows."""

    def on_changed(self) -> None:
        """The metadata knows others."""
        self._kept = self._metadata.users()
        self.users = self._kept.join(self._own)

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Return the handler of each request type."""
        return {
            DescribeUserScramCredentialsRequest: lambda request, _: self.describe(request),
            # To who proves itself where nobody asks; where somebody does, that is the gate's.
            SaslHandshakeRequest: lambda _, __: SaslHandshakeResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE
            ),
            SaslAuthenticateRequest: lambda _, __: SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="this listener does not ask for SASL",
            ),
        }

    def describe(
        self, request: DescribeUserScramCredentialsRequest
    ) -> DescribeUserScramCredentialsResponse:
        """Which mechanisms users have, and with how many iterations."""
        asked = [each.name for each in request.users or ()] or self._kept.names
        counts = Counter(asked)
        return DescribeUserScramCredentialsResponse(
            error_message=None, results=[self._described(name, counts[name]) for name in counts]
        )

    def _described(self, name: str, count: int) -> DescribeUserScramCredentialsResult:
        own = self._kept.of(name)
        if count > 1:
            code, message = ErrorCode.DUPLICATE_RESOURCE, f"user {name!r} is {count} times in"
        elif not own:
            code, message = ErrorCode.RESOURCE_NOT_FOUND, f"there is no user {name!r}"
        else:
            infos = [
                CredentialInfo(mechanism=each.mechanism, iterations=each.iterations)
                for _, each in sorted(own.items())
            ]
            return DescribeUserScramCredentialsResult(
                user=name, error_message=None, credential_infos=infos
            )
        return DescribeUserScramCredentialsResult(user=name, error_code=code, error_message=message)
