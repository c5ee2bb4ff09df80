//! CURVE on ZeroMQ sockets: encryption, and authentication by keys.
//!
//! The side that binds a socket of CURVE is the server in most fleets, but CURVE does not require it. A server has a key pair,
//! and a list of the clients that it admits. A client has a key pair, and has the server's public key.
//!
//! ```
//! use flash_indexer_curve::KeyPair;
//!
//! let pair = KeyPair::generate()?;
//! let read = KeyPair::parse(&pair.secret_certificate())?;
//! assert_eq!(read.public(), pair.public());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | role |
//! |---|---|
//! | `keys.rs` | keys in Z85, and certificates with a key pair |
//! | `lists.rs` | lists of servers' and clients' public keys |
//! | `reloaded.rs` | a file that is read again before each use |
//! | `sockets.rs` | sockets with CURVE, and the admission of clients (ZAP) |

mod keys;
mod lists;
mod reloaded;
mod sockets;

pub use keys::{KeyError, KeyPair, PublicKey};
pub use lists::{ClientKeys, ListError, ServerKeys};
pub use reloaded::CurveFileError;
pub use sockets::{Admission, Curve, CurveFiles};
