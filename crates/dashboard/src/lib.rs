//! The dashboard: its pages, and a stream of live figures for them.
//!
//! The pages are hand-written HTML, CSS and ES modules, embedded in the program. They call the HTTP API of the service that
//! serves them, and nothing else: a Content-Security-Policy forbids other hosts and inline scripts.
//!
//! | file | role |
//! |---|---|
//! | `assets.rs` | the files of the pages |
//! | `live.rs` | the sampler of live figures and its subscribers |
//! | `../assets/` | the pages: `index.html`, `style.css`, `icon.svg`, one module for each view, and the modules that views share |

mod assets;
mod live;

pub use assets::{Asset, PAGE, asset};
pub use live::{LiveEvents, LiveFigures, LiveGuard, SUBSCRIBERS_MAX, Sample, TooManySubscribers};
