"""Every supported request, and its response with an error and nothing else."""

from __future__ import annotations

from streamlog.protocol.messages import (
    broker_registration,
    classic_groups,
    cluster_metadata,
    consumer_groups,
    lag_messages,
    mirror_messages,
    partitions_and_replicas,
    produce_and_fetch,
    publishing,
    quorum_messages,
    registry_messages,
    sasl_acls_quotas,
    telemetry,
    topics_and_configs,
    transaction_messages,
)
from streamlog.protocol.schema import Message

CODE = 41
ID = bytes(15) + b"\1"
RESPONSES: list[tuple[Message, Message]] = [
    (
        produce_and_fetch.ProduceRequest(
            topic_data=[
                produce_and_fetch.TopicProduceData(
                    name="a", partition_data=[produce_and_fetch.PartitionProduceData(index=2)]
                )
            ]
        ),
        produce_and_fetch.ProduceResponse(
            responses=[
                produce_and_fetch.TopicProduceResponse(
                    name="a",
                    partition_responses=[
                        produce_and_fetch.PartitionProduceResponse(
                            index=2, error_code=CODE, base_offset=-1, error_message="why"
                        )
                    ],
                )
            ]
        ),
    ),
    (produce_and_fetch.FetchRequest(), produce_and_fetch.FetchResponse(error_code=CODE)),
    (
        produce_and_fetch.ListOffsetsRequest(
            topics=[
                produce_and_fetch.ListOffsetsTopic(
                    name="a", partitions=[produce_and_fetch.ListOffsetsPartition(partition_index=2)]
                )
            ]
        ),
        produce_and_fetch.ListOffsetsResponse(
            topics=[
                produce_and_fetch.ListOffsetsTopicResponse(
                    name="a",
                    partitions=[
                        produce_and_fetch.ListOffsetsPartitionResponse(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (cluster_metadata.MetadataRequest(), cluster_metadata.MetadataResponse(error_code=CODE)),
    (
        classic_groups.OffsetCommitRequest(
            topics=[
                classic_groups.OffsetCommitRequestTopic(
                    topic_id=ID,
                    partitions=[classic_groups.OffsetCommitRequestPartition(partition_index=2)],
                )
            ]
        ),
        classic_groups.OffsetCommitResponse(
            topics=[
                classic_groups.OffsetCommitResponseTopic(
                    topic_id=ID,
                    partitions=[
                        classic_groups.OffsetCommitResponsePartition(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (
        classic_groups.OffsetFetchRequest(
            topics=[classic_groups.OffsetFetchRequestTopic(name="a", partition_indexes=[1, 2])]
        ),
        classic_groups.OffsetFetchResponse(
            topics=[
                classic_groups.OffsetFetchResponseTopic(
                    name="a",
                    partitions=[
                        classic_groups.OffsetFetchResponsePartition(
                            partition_index=1, committed_offset=-1, error_code=CODE
                        ),
                        classic_groups.OffsetFetchResponsePartition(
                            partition_index=2, committed_offset=-1, error_code=CODE
                        ),
                    ],
                )
            ],
            error_code=CODE,
        ),
    ),
    (
        classic_groups.OffsetFetchRequest(
            groups=[
                classic_groups.OffsetFetchRequestGroup(
                    group_id="a",
                    topics=[
                        classic_groups.OffsetFetchRequestTopics(
                            topic_id=ID, partition_indexes=[1, 2]
                        )
                    ],
                )
            ]
        ),
        classic_groups.OffsetFetchResponse(
            error_code=CODE,
            groups=[classic_groups.OffsetFetchResponseGroup(group_id="a", error_code=CODE)],
        ),
    ),
    (
        classic_groups.FindCoordinatorRequest(),
        classic_groups.FindCoordinatorResponse(
            error_code=CODE, error_message="why", node_id=-1, port=-1
        ),
    ),
    (
        classic_groups.FindCoordinatorRequest(coordinator_keys=["a", "b"]),
        classic_groups.FindCoordinatorResponse(
            error_code=CODE,
            error_message="why",
            node_id=-1,
            port=-1,
            coordinators=[
                classic_groups.FoundCoordinator(
                    key="a", node_id=-1, port=-1, error_code=CODE, error_message="why"
                ),
                classic_groups.FoundCoordinator(
                    key="b", node_id=-1, port=-1, error_code=CODE, error_message="why"
                ),
            ],
        ),
    ),
    (classic_groups.JoinGroupRequest(), classic_groups.JoinGroupResponse(error_code=CODE)),
    (classic_groups.HeartbeatRequest(), classic_groups.HeartbeatResponse(error_code=CODE)),
    (classic_groups.LeaveGroupRequest(), classic_groups.LeaveGroupResponse(error_code=CODE)),
    (classic_groups.SyncGroupRequest(), classic_groups.SyncGroupResponse(error_code=CODE)),
    (
        classic_groups.DescribeGroupsRequest(groups=["a", "b"]),
        classic_groups.DescribeGroupsResponse(
            groups=[
                classic_groups.DescribedGroup(error_code=CODE, error_message="why", group_id="a"),
                classic_groups.DescribedGroup(error_code=CODE, error_message="why", group_id="b"),
            ]
        ),
    ),
    (classic_groups.ListGroupsRequest(), classic_groups.ListGroupsResponse(error_code=CODE)),
    (
        sasl_acls_quotas.SaslHandshakeRequest(),
        sasl_acls_quotas.SaslHandshakeResponse(error_code=CODE),
    ),
    (cluster_metadata.ApiVersionsRequest(), cluster_metadata.ApiVersionsResponse(error_code=CODE)),
    (
        topics_and_configs.CreateTopicsRequest(
            topics=[
                topics_and_configs.CreatableTopic(
                    name="a",
                    assignments=[topics_and_configs.CreatableReplicaAssignment(partition_index=2)],
                    configs=[topics_and_configs.CreatableTopicConfig(name="a")],
                )
            ]
        ),
        topics_and_configs.CreateTopicsResponse(
            topics=[
                topics_and_configs.CreatableTopicResult(
                    name="a", error_code=CODE, error_message="why", configs=None
                )
            ]
        ),
    ),
    (
        topics_and_configs.DeleteTopicsRequest(topic_names=["a", "b"]),
        topics_and_configs.DeleteTopicsResponse(
            responses=[
                topics_and_configs.DeletableTopicResult(
                    name="a", error_code=CODE, error_message="why"
                ),
                topics_and_configs.DeletableTopicResult(
                    name="b", error_code=CODE, error_message="why"
                ),
            ]
        ),
    ),
    (
        topics_and_configs.DeleteTopicsRequest(
            topics=[topics_and_configs.DeleteTopicState(name="a", topic_id=ID)]
        ),
        topics_and_configs.DeleteTopicsResponse(
            responses=[
                topics_and_configs.DeletableTopicResult(
                    name="a", topic_id=ID, error_code=CODE, error_message="why"
                )
            ]
        ),
    ),
    (
        topics_and_configs.DeleteRecordsRequest(
            topics=[
                topics_and_configs.DeleteRecordsTopic(
                    name="a",
                    partitions=[topics_and_configs.DeleteRecordsPartition(partition_index=2)],
                )
            ]
        ),
        topics_and_configs.DeleteRecordsResponse(
            topics=[
                topics_and_configs.DeleteRecordsTopicResult(
                    name="a",
                    partitions=[
                        topics_and_configs.DeleteRecordsPartitionResult(
                            partition_index=2, low_watermark=-1, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (
        classic_groups.InitProducerIdRequest(),
        classic_groups.InitProducerIdResponse(error_code=CODE, producer_epoch=-1),
    ),
    (
        cluster_metadata.OffsetForLeaderEpochRequest(
            topics=[
                cluster_metadata.OffsetForLeaderTopic(
                    topic="a", partitions=[cluster_metadata.OffsetForLeaderPartition(partition=2)]
                )
            ]
        ),
        cluster_metadata.OffsetForLeaderEpochResponse(
            topics=[
                cluster_metadata.OffsetForLeaderTopicResult(
                    topic="a",
                    partitions=[cluster_metadata.EpochEndOffset(error_code=CODE, partition=2)],
                )
            ]
        ),
    ),
    (
        transaction_messages.AddPartitionsToTxnRequest(
            v3_and_below_topics=[
                transaction_messages.AddPartitionsToTxnTopic(name="a", partitions=[1, 2])
            ]
        ),
        transaction_messages.AddPartitionsToTxnResponse(
            results_by_topic_v3_and_below=[
                transaction_messages.AddPartitionsToTxnTopicResult(
                    name="a",
                    results_by_partition=[
                        transaction_messages.AddPartitionsToTxnPartitionResult(
                            partition_index=1, partition_error_code=CODE
                        ),
                        transaction_messages.AddPartitionsToTxnPartitionResult(
                            partition_index=2, partition_error_code=CODE
                        ),
                    ],
                )
            ]
        ),
    ),
    (
        transaction_messages.AddPartitionsToTxnRequest(
            transactions=[
                transaction_messages.AddPartitionsToTxnTransaction(
                    transactional_id="a",
                    producer_id=2,
                    topics=[
                        transaction_messages.AddPartitionsToTxnTopic(name="a", partitions=[1, 2])
                    ],
                )
            ]
        ),
        transaction_messages.AddPartitionsToTxnResponse(
            results_by_transaction=[
                transaction_messages.AddPartitionsToTxnResult(
                    transactional_id="a",
                    topic_results=[
                        transaction_messages.AddPartitionsToTxnTopicResult(
                            name="a",
                            results_by_partition=[
                                transaction_messages.AddPartitionsToTxnPartitionResult(
                                    partition_index=1, partition_error_code=CODE
                                ),
                                transaction_messages.AddPartitionsToTxnPartitionResult(
                                    partition_index=2, partition_error_code=CODE
                                ),
                            ],
                        )
                    ],
                )
            ]
        ),
    ),
    (
        transaction_messages.AddOffsetsToTxnRequest(),
        transaction_messages.AddOffsetsToTxnResponse(error_code=CODE),
    ),
    (transaction_messages.EndTxnRequest(), transaction_messages.EndTxnResponse(error_code=CODE)),
    (
        transaction_messages.WriteTxnMarkersRequest(
            markers=[
                transaction_messages.WritableTxnMarker(
                    producer_id=2,
                    topics=[
                        transaction_messages.WritableTxnMarkerTopic(
                            name="a", partition_indexes=[1, 2]
                        )
                    ],
                )
            ]
        ),
        transaction_messages.WriteTxnMarkersResponse(
            markers=[
                transaction_messages.WritableTxnMarkerResult(
                    producer_id=2,
                    topics=[
                        transaction_messages.WritableTxnMarkerTopicResult(
                            name="a",
                            partitions=[
                                transaction_messages.WritableTxnMarkerPartitionResult(
                                    partition_index=1, error_code=CODE
                                ),
                                transaction_messages.WritableTxnMarkerPartitionResult(
                                    partition_index=2, error_code=CODE
                                ),
                            ],
                        )
                    ],
                )
            ]
        ),
    ),
    (
        transaction_messages.TxnOffsetCommitRequest(
            topics=[
                transaction_messages.TxnOffsetCommitRequestTopic(
                    name="a",
                    partitions=[
                        transaction_messages.TxnOffsetCommitRequestPartition(partition_index=2)
                    ],
                )
            ]
        ),
        transaction_messages.TxnOffsetCommitResponse(
            topics=[
                transaction_messages.TxnOffsetCommitResponseTopic(
                    name="a",
                    partitions=[
                        transaction_messages.TxnOffsetCommitResponsePartition(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (
        sasl_acls_quotas.DescribeAclsRequest(),
        sasl_acls_quotas.DescribeAclsResponse(error_code=CODE, error_message="why"),
    ),
    (
        sasl_acls_quotas.CreateAclsRequest(
            creations=[sasl_acls_quotas.AclCreation(resource_type=2, resource_name="a")]
        ),
        sasl_acls_quotas.CreateAclsResponse(
            results=[sasl_acls_quotas.AclCreationResult(error_code=CODE, error_message="why")]
        ),
    ),
    (
        sasl_acls_quotas.DeleteAclsRequest(filters=[sasl_acls_quotas.DeleteAclsFilter()]),
        sasl_acls_quotas.DeleteAclsResponse(
            filter_results=[
                sasl_acls_quotas.DeleteAclsFilterResult(error_code=CODE, error_message="why")
            ]
        ),
    ),
    (
        topics_and_configs.DescribeConfigsRequest(
            resources=[
                topics_and_configs.DescribeConfigsResource(
                    resource_type=2, resource_name="a", configuration_keys=["a", "b"]
                )
            ]
        ),
        topics_and_configs.DescribeConfigsResponse(
            results=[
                topics_and_configs.DescribeConfigsResult(
                    error_code=CODE, error_message="why", resource_type=2, resource_name="a"
                )
            ]
        ),
    ),
    (
        topics_and_configs.AlterConfigsRequest(
            resources=[
                topics_and_configs.ReplaceConfigsResource(
                    resource_type=2,
                    resource_name="a",
                    configs=[topics_and_configs.ReplacedConfig(name="a")],
                )
            ]
        ),
        topics_and_configs.AlterConfigsResponse(
            responses=[
                topics_and_configs.AlterConfigsResourceResponse(
                    error_code=CODE, error_message="why", resource_type=2, resource_name="a"
                )
            ]
        ),
    ),
    (
        partitions_and_replicas.AlterReplicaLogDirsRequest(
            dirs=[
                partitions_and_replicas.AlterReplicaLogDir(
                    path="/disk2",
                    topics=[
                        partitions_and_replicas.AlterReplicaLogDirTopic(name="a", partitions=[2])
                    ],
                )
            ]
        ),
        partitions_and_replicas.AlterReplicaLogDirsResponse(
            results=[
                partitions_and_replicas.AlterReplicaLogDirTopicResult(
                    topic_name="a",
                    partitions=[
                        partitions_and_replicas.AlterReplicaLogDirPartitionResult(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
    (
        partitions_and_replicas.DescribeLogDirsRequest(),
        partitions_and_replicas.DescribeLogDirsResponse(error_code=CODE),
    ),
    (
        sasl_acls_quotas.SaslAuthenticateRequest(),
        sasl_acls_quotas.SaslAuthenticateResponse(error_code=CODE, error_message="why"),
    ),
    (
        partitions_and_replicas.CreatePartitionsRequest(
            topics=[
                partitions_and_replicas.CreatePartitionsTopic(
                    name="a", assignments=[partitions_and_replicas.CreatePartitionsAssignment()]
                )
            ]
        ),
        partitions_and_replicas.CreatePartitionsResponse(
            results=[
                partitions_and_replicas.CreatePartitionsTopicResult(
                    name="a", error_code=CODE, error_message="why"
                )
            ]
        ),
    ),
    (
        consumer_groups.DeleteGroupsRequest(groups_names=["a", "b"]),
        consumer_groups.DeleteGroupsResponse(
            results=[
                consumer_groups.DeletableGroupResult(group_id="a", error_code=CODE),
                consumer_groups.DeletableGroupResult(group_id="b", error_code=CODE),
            ]
        ),
    ),
    (
        partitions_and_replicas.ElectLeadersRequest(
            topic_partitions=[
                partitions_and_replicas.ElectedTopicPartitions(topic="a", partitions=[1, 2])
            ]
        ),
        partitions_and_replicas.ElectLeadersResponse(
            error_code=CODE,
            replica_election_results=[
                partitions_and_replicas.ReplicaElectionResult(
                    topic="a",
                    partition_result=[
                        partitions_and_replicas.PartitionResult(
                            partition_id=1, error_code=CODE, error_message="why"
                        ),
                        partitions_and_replicas.PartitionResult(
                            partition_id=2, error_code=CODE, error_message="why"
                        ),
                    ],
                )
            ],
        ),
    ),
    (
        topics_and_configs.IncrementalAlterConfigsRequest(
            resources=[
                topics_and_configs.AlterConfigsResource(
                    resource_type=2,
                    resource_name="a",
                    configs=[topics_and_configs.AlterableConfig(name="a")],
                )
            ]
        ),
        topics_and_configs.IncrementalAlterConfigsResponse(
            responses=[
                topics_and_configs.AlterConfigsResourceResponse(
                    error_code=CODE, error_message="why", resource_type=2, resource_name="a"
                )
            ]
        ),
    ),
    (
        partitions_and_replicas.AlterPartitionReassignmentsRequest(),
        partitions_and_replicas.AlterPartitionReassignmentsResponse(
            error_code=CODE, error_message="why"
        ),
    ),
    (
        partitions_and_replicas.ListPartitionReassignmentsRequest(),
        partitions_and_replicas.ListPartitionReassignmentsResponse(
            error_code=CODE, error_message="why"
        ),
    ),
    (consumer_groups.OffsetDeleteRequest(), consumer_groups.OffsetDeleteResponse(error_code=CODE)),
    (
        sasl_acls_quotas.DescribeClientQuotasRequest(),
        sasl_acls_quotas.DescribeClientQuotasResponse(
            error_code=CODE, error_message="why", entries=None
        ),
    ),
    (
        sasl_acls_quotas.AlterClientQuotasRequest(
            entries=[
                sasl_acls_quotas.QuotaAlteration(
                    entity=[sasl_acls_quotas.QuotaEntity(entity_type="a", entity_name="a")],
                    ops=[sasl_acls_quotas.QuotaOperation(key="a")],
                )
            ]
        ),
        sasl_acls_quotas.AlterClientQuotasResponse(
            entries=[
                sasl_acls_quotas.AlteredQuota(
                    error_code=CODE,
                    error_message="why",
                    entity=[sasl_acls_quotas.QuotaEntity(entity_type="a", entity_name="a")],
                )
            ]
        ),
    ),
    (
        sasl_acls_quotas.DescribeUserScramCredentialsRequest(),
        sasl_acls_quotas.DescribeUserScramCredentialsResponse(error_code=CODE, error_message="why"),
    ),
    (
        sasl_acls_quotas.AlterUserScramCredentialsRequest(
            deletions=[sasl_acls_quotas.ScramCredentialDeletion(name="a")],
            upsertions=[sasl_acls_quotas.ScramCredentialUpsertion(name="a")],
        ),
        sasl_acls_quotas.AlterUserScramCredentialsResponse(
            results=[
                sasl_acls_quotas.AlterUserScramCredentialsResult(
                    user="a", error_code=CODE, error_message="why"
                )
            ]
        ),
    ),
    (quorum_messages.VoteRequest(), quorum_messages.VoteResponse(error_code=CODE)),
    (
        quorum_messages.BeginQuorumEpochRequest(),
        quorum_messages.BeginQuorumEpochResponse(error_code=CODE),
    ),
    (
        quorum_messages.EndQuorumEpochRequest(),
        quorum_messages.EndQuorumEpochResponse(error_code=CODE),
    ),
    (
        quorum_messages.DescribeQuorumRequest(),
        quorum_messages.DescribeQuorumResponse(error_code=CODE, error_message="why"),
    ),
    (
        broker_registration.AlterPartitionRequest(),
        broker_registration.AlterPartitionResponse(error_code=CODE),
    ),
    (
        quorum_messages.FetchSnapshotRequest(),
        quorum_messages.FetchSnapshotResponse(error_code=CODE),
    ),
    (
        cluster_metadata.DescribeClusterRequest(),
        cluster_metadata.DescribeClusterResponse(error_code=CODE, error_message="why"),
    ),
    (
        transaction_messages.DescribeProducersRequest(
            topics=[transaction_messages.DescribeProducersTopic(name="a", partition_indexes=[1, 2])]
        ),
        transaction_messages.DescribeProducersResponse(
            topics=[
                transaction_messages.TopicResponse(
                    name="a",
                    partitions=[
                        transaction_messages.PartitionResponse(
                            partition_index=1, error_code=CODE, error_message="why"
                        ),
                        transaction_messages.PartitionResponse(
                            partition_index=2, error_code=CODE, error_message="why"
                        ),
                    ],
                )
            ]
        ),
    ),
    (
        broker_registration.BrokerRegistrationRequest(),
        broker_registration.BrokerRegistrationResponse(error_code=CODE),
    ),
    (
        broker_registration.BrokerHeartbeatRequest(),
        broker_registration.BrokerHeartbeatResponse(error_code=CODE),
    ),
    (
        broker_registration.UnregisterBrokerRequest(),
        broker_registration.UnregisterBrokerResponse(error_code=CODE, error_message="why"),
    ),
    (
        transaction_messages.DescribeTransactionsRequest(transactional_ids=["a", "b"]),
        transaction_messages.DescribeTransactionsResponse(
            transaction_states=[
                transaction_messages.DescribedTransaction(error_code=CODE, transactional_id="a"),
                transaction_messages.DescribedTransaction(error_code=CODE, transactional_id="b"),
            ]
        ),
    ),
    (
        transaction_messages.ListTransactionsRequest(),
        transaction_messages.ListTransactionsResponse(error_code=CODE),
    ),
    (
        broker_registration.AllocateProducerIdsRequest(),
        broker_registration.AllocateProducerIdsResponse(error_code=CODE),
    ),
    (
        consumer_groups.ConsumerGroupHeartbeatRequest(),
        consumer_groups.ConsumerGroupHeartbeatResponse(error_code=CODE, error_message="why"),
    ),
    (
        consumer_groups.ConsumerGroupDescribeRequest(group_ids=["a", "b"]),
        consumer_groups.ConsumerGroupDescribeResponse(
            groups=[
                consumer_groups.DescribedConsumerGroup(
                    error_code=CODE, error_message="why", group_id="a"
                ),
                consumer_groups.DescribedConsumerGroup(
                    error_code=CODE, error_message="why", group_id="b"
                ),
            ]
        ),
    ),
    (
        telemetry.GetTelemetrySubscriptionsRequest(),
        telemetry.GetTelemetrySubscriptionsResponse(error_code=CODE),
    ),
    (telemetry.PushTelemetryRequest(), telemetry.PushTelemetryResponse(error_code=CODE)),
    (
        topics_and_configs.ListConfigResourcesRequest(),
        topics_and_configs.ListConfigResourcesResponse(error_code=CODE),
    ),
    (
        partitions_and_replicas.DescribeTopicPartitionsRequest(
            topics=[partitions_and_replicas.TopicRequest(name="a")]
        ),
        partitions_and_replicas.DescribeTopicPartitionsResponse(
            topics=[
                partitions_and_replicas.DescribeTopicPartitionsResponseTopic(
                    error_code=CODE, name="a"
                )
            ]
        ),
    ),
    (publishing.PublishRequest(), publishing.PublishResponse(error_code=CODE, error_message="why")),
    (publishing.StageRequest(), publishing.StageResponse(error_code=CODE, error_message="why")),
    (
        publishing.DropStagedRequest(),
        publishing.DropStagedResponse(error_code=CODE, error_message="why"),
    ),
    (
        lag_messages.DescribeGroupLagRequest(groups=["g"]),
        lag_messages.DescribeGroupLagResponse(
            groups=[
                lag_messages.DescribedGroupLag(error_code=CODE, error_message="why", group_id="g")
            ]
        ),
    ),
    (
        lag_messages.FindNextRecordsRequest(),
        lag_messages.FindNextRecordsResponse(error_code=CODE),
    ),
    (
        registry_messages.WriteToRegistryRequest(),
        registry_messages.WriteToRegistryResponse(error_code=CODE, error_message="why"),
    ),
    *(
        (request(), response(error_code=CODE, error_message="why"))
        for request, response in (
            (mirror_messages.CreateLinkRequest, mirror_messages.CreateLinkResponse),
            (mirror_messages.AlterLinkRequest, mirror_messages.AlterLinkResponse),
            (mirror_messages.DeleteLinkRequest, mirror_messages.DeleteLinkResponse),
            (mirror_messages.CreateMirrorsRequest, mirror_messages.CreateMirrorsResponse),
            (mirror_messages.AlterMirrorsRequest, mirror_messages.AlterMirrorsResponse),
            (mirror_messages.FailBackRequest, mirror_messages.FailBackResponse),
            (mirror_messages.AlterSealsRequest, mirror_messages.AlterSealsResponse),
            (mirror_messages.AlterLinkAclsRequest, mirror_messages.AlterLinkAclsResponse),
            (mirror_messages.MarkAppsRequest, mirror_messages.MarkAppsResponse),
            (mirror_messages.DescribeMirrorsRequest, mirror_messages.DescribeMirrorsResponse),
        )
    ),
    (
        mirror_messages.AlterMirrorPartitionRequest(),
        mirror_messages.AlterMirrorPartitionResponse(error_code=CODE),
    ),
]
BY_ITEM: list[tuple[Message, Message]] = [
    (
        produce_and_fetch.FetchRequest(
            topics=[
                produce_and_fetch.FetchTopic(
                    topic_id=ID, partitions=[produce_and_fetch.FetchPartition(partition=2)]
                )
            ]
        ),
        produce_and_fetch.FetchResponse(
            responses=[
                produce_and_fetch.FetchableTopicResponse(
                    topic_id=ID,
                    partitions=[
                        produce_and_fetch.PartitionData(
                            partition_index=2, error_code=CODE, high_watermark=-1, records=b""
                        )
                    ],
                )
            ]
        ),
    ),
    (
        consumer_groups.OffsetDeleteRequest(
            topics=[
                consumer_groups.OffsetDeleteRequestTopic(
                    name="a",
                    partitions=[consumer_groups.OffsetDeleteRequestPartition(partition_index=2)],
                )
            ]
        ),
        consumer_groups.OffsetDeleteResponse(
            topics=[
                consumer_groups.OffsetDeleteResponseTopic(
                    name="a",
                    partitions=[
                        consumer_groups.OffsetDeleteResponsePartition(
                            partition_index=2, error_code=CODE
                        )
                    ],
                )
            ]
        ),
    ),
]
