//! URLs without their secrets, for errors and output.

use std::borrow::Cow;

/// Schemes of URLs that options take. Any other scheme is hidden before a `@`, because it may be a part of a password.
const SCHEMES: [&str; 9] = ["http", "https", "grpc", "grpcs", "tcp", "redis", "rediss", "valkey", "valkeys"];

/// Topologies of stores, after the scheme.
const TOPOLOGIES: [&str; 2] = ["+cluster", "+sentinel"];

/// Text in the place of a secret in an error or in output.
pub const MASK: &str = "…";

/// A URL without its user, password and parameters.
///
/// The URL may be malformed, and lack its scheme: all text before the last `@` counts as a user and a password.
#[must_use]
pub fn masked_url(url: &str) -> Cow<'_, str> {
    let scheme = url.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).map_or(0, |(scheme, _)| scheme.len());
    let (scheme, rest) = url.split_at(if scheme > 0 { scheme + "://".len() } else { 0 });
    let (user, hosts) = rest.rsplit_once('@').map_or((None, rest), |(user, hosts)| (Some(user), hosts));
    let parameters = hosts.find(['?', '#']).map(|at| at + 1);
    match (user, parameters) {
        (None, None) => Cow::Borrowed(url),
        // The `@` may be in a parameter.
        (Some(user), _) if user.contains(['?', '#']) => Cow::Owned(format!("{scheme}{MASK}")),
        _ => {
            let user = user.map_or(String::new(), |_| format!("{MASK}@"));
            let hosts = parameters.map_or(Cow::Borrowed(hosts), |end| Cow::Owned(format!("{}{MASK}", &hosts[..end])));
            Cow::Owned(format!("{scheme}{user}{hosts}"))
        }
    }
}

fn is_scheme(text: &str) -> bool {
    let kind = TOPOLOGIES.iter().find_map(|topology| text.strip_suffix(topology)).unwrap_or(text);
    SCHEMES.contains(&kind)
}

/// A text without the users and passwords of its URLs. Linear in the text.
#[must_use]
pub fn without_users(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("://") {
        let end = after.find([' ', '\'', '"', '\n']).unwrap_or(after.len());
        let (url, following) = after.split_at(end);
        let hosts = url.rsplit_once('@').map_or(url, |(_, hosts)| hosts);
        shown += before;
        // A path may have an @.
        let is_path = before.ends_with("ipc");
        shown += if hosts.len() < url.len() && !is_path { "://…@" } else { "://" };
        shown += if is_path { url } else { hosts };
        rest = following;
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_shown_without_the_users_of_its_urls() {
        for (text, shown) in [
            ("failed to bind tcp://u:SECRET@h:1: in use", "failed to bind tcp://…@h:1: in use"),
            ("failed to bind ipc:///tmp/a@b/c: no directory", "failed to bind ipc:///tmp/a@b/c: no directory"),
        ] {
            assert_eq!(without_users(text), shown);
        }
    }

    #[test]
    fn a_url_is_shown_without_its_user_password_and_parameters() {
        for (url, shown) in [
            ("http://indexer:8090", "http://indexer:8090"),
            ("redis+cluster://a:1,b:2/0", "redis+cluster://a:1,b:2/0"),
            ("fleet.zst", "fleet.zst"),
            ("http://u:SECRET@indexer:8090/base", "http://…@indexer:8090/base"),
            ("redis+sentinel://u:SE/C@R://ET@a,b/main", "redis+sentinel://…@a,b/main"),
            ("u:SECRET@127.0.0.1:1", "…@127.0.0.1:1"),
            (":SECRET@h:1", "…@h:1"),
            ("SECRET@h", "…@h"),
            ("redis:/u:SECRET@h", "…@h"),
            ("redis:u:SECRET@h", "…@h"),
            ("redis+cluster//u:SECRET@h", "…@h"),
            ("redsi://u:SECRET@h", "…@h"),
            ("u:SECRET://x@h", "…@h"),
            ("redis://h/?password=SECRET", "redis://h/?…"),
            ("redis://u:SECRET@h?password=SECRET", "redis://…@h?…"),
            ("redis://h/?password=SE@CRET", "redis://…"),
            ("redis://u:SE?CRET@h", "redis://…"),
            ("http://h/#SECRET", "http://h/#…"),
        ] {
            assert_eq!(masked_url(url), shown);
        }
    }
}
