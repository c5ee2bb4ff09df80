//! From engines' sockets into indexes.

mod intake;
mod listener;
mod sockets;
mod writer;

pub use listener::{Connection, ListenerReport, Trust};
pub(crate) use listener::{Listener, ListenerOptions};
pub(crate) use sockets::{ConnectError, Sockets};
pub(crate) use writer::Writers;
