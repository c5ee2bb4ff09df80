//! What several commands of the program share: the client of a running service, and output to a terminal.
//!
//! | file | role |
//! |---|---|
//! | `client.rs` | the service's HTTP API as the commands use it, and the options that select a service |
//! | `output.rs` | standard output, tables, progress bars, texts of errors |

mod client;
pub mod output;

pub use self::client::{
    Dump, DumpEncoding, IndexerClient, ServiceUrl, TOKEN_HELP, TOKEN_VARIABLE, TlsArguments, sends_token,
};
