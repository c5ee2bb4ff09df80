//! Files of the pages.

use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

/// Only files and requests of the service itself: no inline script or style, no other host, no frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, HeaderValue); 5] = [
    // A newer program serves other files under the same names.
    (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
    (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
];

/// A file of the dashboard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asset {
    name: &'static str,
    content_type: &'static str,
    text: &'static str,
}

/// A file of `assets/` and its content type.
macro_rules! embedded {
    ($name:literal, $content_type:expr) => {
        Asset { name: $name, content_type: $content_type, text: include_str!(concat!("../assets/", $name)) }
    };
}

/// The page itself.
pub const PAGE: Asset = embedded!("index.html", HTML);

const ASSETS: [Asset; 12] = [
    embedded!("style.css", CSS),
    embedded!("icon.svg", SVG),
    embedded!("app.js", SCRIPT),
    embedded!("api.js", SCRIPT),
    embedded!("chart.js", SCRIPT),
    embedded!("dom.js", SCRIPT),
    embedded!("fleet.js", SCRIPT),
    embedded!("health.js", SCRIPT),
    embedded!("heat.js", SCRIPT),
    embedded!("live.js", SCRIPT),
    embedded!("prefixes.js", SCRIPT),
    embedded!("query.js", SCRIPT),
];

/// The file of this name, which the page refers to.
#[must_use]
pub fn asset(name: &str) -> Option<Asset> {
    ASSETS.into_iter().find(|asset| asset.name == name)
}

impl IntoResponse for Asset {
    fn into_response(self) -> Response {
        (HEADERS, [(CONTENT_TYPE, self.content_type)], self.text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The relative names in `quotes` that follow `marker` in a text.
    fn names_after<'t>(text: &'t str, marker: &str) -> BTreeSet<&'t str> {
        text.split(marker).skip(1).filter_map(|rest| rest.split('"').next()).collect()
    }

    #[test]
    fn every_file_of_the_folder_is_served_and_referred_to() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/assets");
        let entries = std::fs::read_dir(folder).expect("a folder");
        let files: BTreeSet<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
        let embedded = ASSETS.iter().chain([&PAGE]).map(|asset| asset.name.to_owned());
        assert_eq!(files, embedded.collect());

        let of_page = names_after(PAGE.text, "\"ui/");
        let of_modules = ASSETS.iter().flat_map(|asset| names_after(asset.text, "from \"./"));
        let referred: BTreeSet<&str> = of_page.into_iter().chain(of_modules).collect();
        assert_eq!(referred, ASSETS.iter().map(|asset| asset.name).collect());
    }

    #[test]
    fn no_file_has_markup_from_text_or_another_host() {
        for Asset { name, text, .. } in ASSETS.into_iter().chain([PAGE]) {
            for forbidden in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "localStorage"]
            {
                assert!(!text.contains(forbidden), "{name} has {forbidden}");
            }
            let hosts = text.matches("://").count();
            let namespaces = text.matches("http://www.w3.org/2000/svg").count();
            assert_eq!(hosts, namespaces, "{name} names another host");
        }
        for inline in ["<style", "style=\"", "onclick", "javascript:"] {
            assert!(!PAGE.text.contains(inline), "the page has {inline}");
        }
        assert_eq!(PAGE.text.matches("<script").count(), PAGE.text.matches("<script type=\"module\" src=").count());
    }
}
