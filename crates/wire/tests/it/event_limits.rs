//! Limits of the lists in one event, so that no event delays the other engines of its decoder for long.

use flash_indexer_wire::{
    EVENT_BLOCKS_MAX, EVENT_COUNTS_MAX, EVENT_FIELDS_MAX, EVENT_KEYS_MAX, EVENT_TOKENS_MAX, EngineEvent, EventError,
    decode_batch,
};

/// The only event of a batch `[0.0, [event], nil]`.
fn decode_one(event: &[u8]) -> Result<EngineEvent<'static>, EventError> {
    let payload = [&[0x93, 0xca, 0, 0, 0, 0, 0x91][..], event, &[0xc0]].concat();
    let batch = decode_batch(payload.leak()).expect("a batch");
    let mut events = batch.events;
    let event = events.next().expect("an event");
    assert!(events.is_empty(), "the event is skipped whole");
    event
}

/// The MessagePack list `[element, …]`.
fn list(count: u32, element: &[u8]) -> Vec<u8> {
    [&[0xdd][..], &count.to_be_bytes(), &element.repeat(count as usize)].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[0xa0 | text.len() as u8][..], text.as_bytes()].concat()
}

/// The map `{"type": kind, "block_size": 1, field: value, …}`.
fn event_map(kind: &str, fields: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut event = vec![0x80 | (fields.len() as u8 + 2)];
    event.extend([text("type"), text(kind), text("block_size"), vec![1]].concat());
    fields.iter().for_each(|(name, value)| event.extend([text(name), value.clone()].concat()));
    event
}

#[test]
fn an_event_whose_lists_are_too_long_is_rejected() {
    let hashes = |count| ("block_hashes", list(count, &[1]));
    let one = move || hashes(1);
    let keys_of_two_blocks =
        |count| ("extra_keys", [&[0x92][..], &list(EVENT_KEYS_MAX - 1, b"\xa1k"), &list(count, b"\xa1k")].concat());
    type Event = Box<dyn Fn(u32) -> Vec<u8>>;
    let cases: [(&str, u32, Event); 9] = [
        ("block_hashes", EVENT_BLOCKS_MAX, Box::new(move |n| event_map("BlockRemoved", &[hashes(n)]))),
        ("block_hashes", EVENT_BLOCKS_MAX, Box::new(move |n| event_map("BlockStored", &[hashes(n)]))),
        ("block_hashes", EVENT_BLOCKS_MAX, Box::new(move |n| event_map("BlockInactive", &[hashes(n)]))),
        (
            "block_hashes",
            EVENT_BLOCKS_MAX,
            Box::new(move |n| event_map("BlockTransferred", &[hashes(n), ("to_medium", text("CPU"))])),
        ),
        (
            "token_ids",
            EVENT_TOKENS_MAX,
            Box::new(move |n| event_map("BlockStored", &[one(), ("token_ids", list(n, &[1]))])),
        ),
        (
            "token_ids",
            EVENT_TOKENS_MAX,
            Box::new(move |n| event_map("BlockStored", &[one(), ("token_ids", list(n, &[0x92, 1, 2]))])),
        ),
        (
            "extra_keys",
            EVENT_BLOCKS_MAX,
            Box::new(move |n| event_map("BlockStored", &[one(), ("extra_keys", list(n, &[0xc0]))])),
        ),
        (
            "extra_keys",
            EVENT_KEYS_MAX,
            Box::new(move |n| {
                event_map("BlockStored", &[one(), ("extra_keys", [&[0x91][..], &list(n, b"\xa1k")].concat())])
            }),
        ),
        (
            "extra_keys",
            EVENT_KEYS_MAX,
            Box::new(move |n| event_map("BlockStored", &[one(), keys_of_two_blocks(n + 1 - EVENT_KEYS_MAX)])),
        ),
    ];
    for (field, max, event) in cases {
        let rejected = decode_one(&event(max + 1)).expect_err(field);
        assert_eq!(rejected, EventError::TooLong { field, count: max + 1, max });
        assert!(decode_one(&event(max)).is_ok(), "{field} of {max}");
    }
    let counts = |count| event_map("BlockRemoved", &[one(), ("remaining_copy_counts", list(count, &[1]))]);
    let too_long = EventError::TooLong { field: "remaining_copy_counts", count: 1 << 20, max: EVENT_COUNTS_MAX };
    assert_eq!(decode_one(&counts(1 << 20)), Err(too_long));
    // A field that is not essential is left out.
    let lookahead = event_map("BlockStored", &[one(), ("lookahead_token_ids", list(EVENT_BLOCKS_MAX + 1, &[0xc0]))]);
    assert!(matches!(decode_one(&lookahead), Ok(EngineEvent::Stored(stored)) if stored.lookahead_token_ids.is_none()));
}

#[test]
fn an_event_of_too_many_fields_or_of_a_repeated_one_is_rejected() {
    let too_many = Err(EventError::TooLong { field: "fields", count: EVENT_FIELDS_MAX + 1, max: EVENT_FIELDS_MAX });
    let head = |marker: u8, count: u32| [&[marker][..], &count.to_be_bytes()].concat();
    let array =
        |count: u32| [head(0xdd, count), text("BlockRemoved"), list(1, &[7]), vec![0xc0; count as usize - 2]].concat();
    assert_eq!(decode_one(&array(EVENT_FIELDS_MAX + 1)), too_many);
    assert!(decode_one(&array(EVENT_FIELDS_MAX)).is_ok());
    let map = |count: u32| {
        let mut event =
            [head(0xdf, count), text("type"), text("BlockRemoved"), text("block_hashes"), list(1, &[7])].concat();
        (2..count).for_each(|number| event.extend([text(&format!("field {number}")), vec![0xc0]].concat()));
        event
    };
    assert_eq!(decode_one(&map(EVENT_FIELDS_MAX + 1)), too_many);
    assert!(decode_one(&map(EVENT_FIELDS_MAX)).is_ok());
    let keys = ("extra_keys", list(1, &[0xc0]));
    let repeated = event_map("BlockStored", &[("block_hashes", list(1, &[7])), keys.clone(), keys]);
    assert_eq!(decode_one(&repeated), Err(EventError::RepeatedField));
}

/// The MessagePack map `{"k": nil, …}`.
fn map(fields: u32) -> Vec<u8> {
    [&[0xdf][..], &fields.to_be_bytes(), &b"\xa1k\xc0".repeat(fields as usize)].concat()
}

#[test]
fn a_list_inside_a_list_that_is_too_long_is_rejected_before_its_elements_are_decoded() {
    let hashes = ("block_hashes", list(1, &[1]));
    let of =
        |field, value: Vec<u8>| event_map("BlockStored", &[hashes.clone(), (field, [&[0x91][..], &value].concat())]);
    let too_long = |field, max| Err(EventError::TooLong { field, count: max + 1, max });
    // Neither is a valid element.
    let (no_text, nil) = (b"\xa1\xff", b"\xc0");
    assert_eq!(
        decode_one(&of("extra_keys", list(EVENT_KEYS_MAX + 1, no_text))),
        too_long("extra_keys", EVENT_KEYS_MAX)
    );
    assert_eq!(decode_one(&of("mm_keys", list(EVENT_KEYS_MAX + 1, nil))), too_long("mm_keys", EVENT_KEYS_MAX));
    assert_eq!(decode_one(&of("mm_keys", map(EVENT_FIELDS_MAX + 1))), too_long("mm_keys", EVENT_FIELDS_MAX));
    // Without the limit the tokens of one block would be decoded, because each is a token.
    let lookahead = of("lookahead_token_ids", list(EVENT_TOKENS_MAX + 1, &[1]));
    assert!(matches!(decode_one(&lookahead), Ok(EngineEvent::Stored(stored)) if stored.lookahead_token_ids.is_none()));
}

#[test]
fn too_many_components_or_fields_of_a_salt_are_rejected() {
    let too_long = |field, max| Err(EventError::TooLong { field, count: max + 1, max });
    let components = |count| {
        event_map("BlockStored", &[("block_hashes", list(1, &[1])), ("component_types", list(count, b"\xa1k"))])
    };
    assert_eq!(decode_one(&components(EVENT_BLOCKS_MAX + 1)), too_long("component_types", EVENT_BLOCKS_MAX));
    assert!(decode_one(&components(EVENT_BLOCKS_MAX)).is_ok());
    // ["BlockStored", [1], nil, [], 1, nil, "GPU", {…}], as SGLang publishes a salt.
    let salt = |fields| {
        let event =
            [vec![0x98], text("BlockStored"), list(1, &[1]), vec![0xc0, 0x90, 1, 0xc0], text("GPU"), map(fields)];
        event.concat()
    };
    assert_eq!(decode_one(&salt(EVENT_FIELDS_MAX + 1)), too_long("extra_keys", EVENT_FIELDS_MAX));
    assert!(decode_one(&salt(EVENT_FIELDS_MAX)).is_ok());
}
