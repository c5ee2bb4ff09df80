//! Headers of the `Accept` family: names with weights.

use axum::http::HeaderMap;
use axum::http::header::HeaderName;

/// The greatest weight of the entries with this name, from 0 (refused) to 1; none if no entry has the name. Wildcards are separate names.
#[must_use]
pub fn accepted_weight(headers: &HeaderMap, header: &HeaderName, wanted: &str) -> Option<f32> {
    let lists = headers.get_all(header).iter().filter_map(|list| list.to_str().ok());
    let weights = lists.flat_map(|list| list.split(',')).filter_map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let is_wanted = parts.next().is_some_and(|name| name.eq_ignore_ascii_case(wanted));
        let weight = parts.filter_map(|parameter| parameter.split_once('=')).find_map(|(name, value)| {
            name.trim_end().eq_ignore_ascii_case("q").then(|| value.trim_start().parse().ok()).flatten()
        });
        is_wanted.then_some(weight.unwrap_or(1.0))
    });
    weights.max_by(f32::total_cmp)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use axum::http::header::ACCEPT;

    use super::*;

    #[test]
    fn a_name_has_the_greatest_weight_of_its_entries_in_all_lines() {
        let weight = |lines: &[&'static str], wanted| {
            let lines = lines.iter().map(|line| (ACCEPT, HeaderValue::from_static(line)));
            accepted_weight(&lines.collect(), &ACCEPT, wanted)
        };
        for (lines, expected) in [
            (&["text/html"] as &[_], Some(1.0)),
            (&["text/html;level=1;q=0.4, text/plain"], Some(0.4)),
            (&["TEXT/HTML; Q=0"], Some(0.0)),
            (&["text/html ; q = 0.25"], Some(0.25)),
            (&["text/html;q=0.2", "application/json, text/html;version=2;q=0.3"], Some(0.3)),
            (&["text/html;seq=0"], Some(1.0)),
            (&["text/*, */*"], None),
            (&["text/htmlx, x/text/html"], None),
            (&[], None),
        ] {
            assert_eq!(weight(lines, "text/html"), expected, "{lines:?}");
        }
        assert_eq!(weight(&["text/html, text/*;q=0.1"], "text/*"), Some(0.1));
    }
}
