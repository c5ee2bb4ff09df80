//! Tests of the parsing of requests.

mod request_checks;

use proptest::prelude::*;

use crate::request_checks::{check_bodies, play};

fn number() -> impl Strategy<Value = String> {
    let token = any::<u32>().prop_flat_map(|max| 0..=max).prop_map(|token| token.to_string());
    let odd = ["-1", "01", "1.5", "1e3", "4294967296", "null", "\"1\"", "", "[1]", "1 2", "99999999", "0"];
    prop_oneof![50 => token, 1 => prop::sample::select(odd.to_vec()).prop_map(str::to_owned)]
}

fn space() -> impl Strategy<Value = &'static str> {
    prop_oneof![5 => Just(""), 3 => Just(" "), 1 => Just("\n\t ")]
}

fn list() -> impl Strategy<Value = String> {
    let item = (space(), number(), space()).prop_map(|(before, number, after)| format!("{before}{number}{after}"));
    prop::collection::vec(item, 0..20).prop_map(|items| format!("[{}]", items.join(",")))
}

fn member() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => (space(), list()).prop_map(|(space, list)| format!("\"token_ids\"{space}:{space}{list}")),
        2 => Just(r#""model":"n""#.to_owned()),
        1 => Just(r#""model":"\"token_ids\":[1]""#.to_owned()),
        1 => Just(r#""token\u005fids":[7]"#.to_owned()),
        1 => list().prop_map(|list| format!(r#""other":{{"token_ids":{list}}}"#)),
        1 => Just(r#""x\"token_ids":[1]"#.to_owned()),
    ]
}

proptest! {
    #[test]
    fn every_body_is_parsed_as_the_general_parser_parses_it(
        members in prop::collection::vec(member(), 0..4),
        end in prop_oneof![9 => Just("}"), 1 => Just(""), 1 => Just("} x")],
    ) {
        let body = format!("{{{}{end}", members.join(","));
        check_bodies(body.as_bytes());
    }

    /// The same as the fuzz target `http_bodies`, without a fuzzer.
    #[test]
    fn requests_of_any_bytes_are_parsed_as_they_should_be(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        play(&bytes);
    }
}
