//! Reasons for which messages and events are rejected.

use super::LabelValue;

/// Reasons for which a message or event is rejected or dropped.
pub(super) const REASONS: [LabelValue; 57] = [
    (
        "bad_frames",
        "A message has more than three frames, a number of other than 8 bytes, or none in a numbered stream, whose ranks are then `degraded`.",
    ),
    ("malformed_batch", "The payload is not valid MessagePack."),
    ("not_a_batch", "The payload is valid MessagePack and no batch."),
    (
        "too_many_events",
        "A batch has more than 1,048,576 events, or a response to a pull more than 262,144; its bytes cannot be that many events of an engine; the rank is `degraded`.",
    ),
    ("malformed_event", "An event is not valid MessagePack."),
    ("not_an_event", "An entry of a batch is not an event; the rank is `degraded`."),
    ("unknown_event_type", "An event has an unknown type; the rank is `degraded`."),
    ("missing_field", "An event lacks a required field; the rank is `degraded`."),
    ("wrong_type", "A field has a wrong type; the rank is `degraded`."),
    ("out_of_range", "A number is out of range; the rank is `degraded`."),
    (
        "event_too_large",
        "A list of an event is too long: more than 262,144 blocks or extra keys, 65,536 copy counts, 4,194,304 tokens or 1,024 fields; the rank is `degraded`.",
    ),
    ("repeated_field", "An event has a field twice; the rank is `degraded`."),
    ("unknown_medium", "An event names an unknown storage medium."),
    (
        "block_size_mismatch",
        "The engine's blocks have another size than registered, or those of a cache group one that is not supported; the rank is `degraded`.",
    ),
    ("token_count_mismatch", "The numbers of tokens and blocks differ; the rank is `degraded`."),
    (
        "no_token_ids",
        "A store names blocks without tokens, and no earlier store has shown them; the rank is `degraded`.",
    ),
    ("partial_entry", "An entry of a Mamba hybrid ends inside a block, and is not indexed; the rank is `partial`."),
    (
        "previous_block_unknown",
        "Blocks of a cache group with smaller blocks were stored, and no event has shown which blocks precede them; the rank is `degraded`, matches can be too short.",
    ),
    ("adapter_name_too_long", "The name of an adapter has more than 512 bytes."),
    ("adapter_name_control_character", "The name of an adapter has a control character."),
    (
        "salted_blocks",
        "The rank holds too many salted blocks, or stored one whose salt may be forgotten; the rank is `degraded`.",
    ),
    (
        "hash_inputs_unknown",
        "A relay has left out a store, because it has not seen the blocks before; the rank is `degraded`.",
    ),
    (
        "chunk_size_unknown",
        "A shared cache removed blocks before it stored any, or very many at once, so how many blocks of the index these are is not known; it is `degraded`.",
    ),
    (
        "manager_unknown",
        "An engine cleared the blocks of one manager, and the index does not know which blocks they are; the rank is `degraded`.",
    ),
    (
        "components_unknown",
        "Copies of blocks with components changed, and the event does not name the components; the rank is `degraded`.",
    ),
    (
        "moved_copies_unknown",
        "An engine with `removal: last_copy` moved a block that had several copies; the rank is `degraded`.",
    ),
    ("hybrid_group", "A cache group of a hybrid model is not understood."),
    ("unnamed_group", "An event of a model with several cache groups names no group."),
    ("bad_replay", "The replay endpoint answers with invalid messages."),
    ("duplicate_message", "A message was received twice."),
    (
        "pull_failed",
        "An engine answered a read over HTTP with an error or a redirect; its ranks are `degraded` until the next message \
         shows that none is missing.",
    ),
    (
        "pull_too_large",
        "An engine's response has more than 64 MiB, or waited too long for other long ones; its events are lost.",
    ),
    ("events_missing", "Events of an engine that is read over HTTP are missing; its ranks are `degraded`."),
    (
        "followed_blocks",
        "An engine that is read over HTTP has too many blocks outside device memory; the rank is `degraded`.",
    ),
    (
        "stream_failed",
        "A call over gRPC ended with an error, or a snapshot's parts were out of order; its rank is `degraded`.",
    ),
    ("stream_lost_data", "A server over gRPC cannot continue after the last batch; its rank is `degraded`."),
    ("stream_too_large", "A batch over gRPC has more than 16 MiB, and is lost; the rank is `degraded`."),
    ("snapshot_incomplete", "A server's snapshot lacks earlier batches; the rank is `degraded`."),
    ("snapshot_too_large", "A server's snapshot has more than 64 MiB, and is left out; the rank is `degraded`."),
    ("connection_unclear", "Messages received around a reconnect were dropped, because their connection is not known."),
    ("queue_full", "The byte budget of received messages, or the queue of a pending registration, is full."),
    ("waiting_full", "Too many messages wait for earlier ones."),
    ("too_many_ranks", "A stream names too many ranks, or too many ranks are registered."),
    ("topic_without_model", "An engine connects with a topic that has no model."),
    ("bad_topic", "An engine connects with a topic that has no valid pod."),
    ("model_not_allowed", "A pod's model is not in `--pod-models`."),
    ("not_registered", "A pod is not registered, and `--pods-max 0` keeps pods from registering themselves."),
    ("registered_otherwise", "The rank is already registered with other values."),
    ("unregistered", "A pod that was unregistered still publishes."),
    ("duplicate_pod", "Two engines connect under one name; the rank is `degraded`."),
    (
        "rank_of_other_stream",
        "A batch names a rank of another endpoint of the instance; the batch is not applied, and the ranks of both are `degraded`.",
    ),
    ("shared_cache_without_model", "A shared cache connects before an engine of its model is registered."),
    ("too_many_pods", "More ranks register themselves than `--pods-max`."),
    ("too_many_pod_models", "Pods add more models than `--pod-models-max`."),
    ("too_many_pending_registrations", "Too many pods wait for their registration."),
    ("too_little_memory", "The model's share of `--memory-max` is below 1 MiB."),
    ("registration_failed", "A pod's registration failed; the log has the cause."),
];

/// Reasons that only the field `rejected` of `/workers` has: they concern connections, and no message.
pub(super) const CONNECTION_REASONS: [LabelValue; 9] = [
    ("curve_handshake", "A CURVE handshake with the engine failed."),
    ("connection_given_up", "The peer at the address is not an engine, or sends messages of more than 16 MiB."),
    ("unknown_host", "The host name of the endpoint does not resolve."),
    ("refused_address", "The host name resolves to an address that no engine may have."),
    ("lookup_panicked", "A lookup of the host name panicked; it is repeated."),
    ("receive_failed", "Receiving from the socket failed."),
    ("stream_unreachable", "A call over gRPC found no server, or its connection ended."),
    ("pull_unreachable", "A read over HTTP found no engine, or took more than 10 s."),
    ("panicked", "A decoder panicked on the stream, which starts over."),
];
