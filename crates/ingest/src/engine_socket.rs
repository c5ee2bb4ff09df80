//! Sockets to engines: received messages, and the connections that they belong to.

use std::sync::Arc;

use super::decoders::{Decoders, Delivery, last_number};
use super::listener::Listener;
use super::message::Frames;
use flash_indexer_types::ConnectionStatus;

/// Limit of messages received from one socket before the next socket's turn.
pub(crate) const MESSAGES_PER_TURN_MAX: usize = 256;

/// A change of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionEvent {
    /// The engine is connected.
    Connected,
    /// The connection is lost.
    Lost,
}

/// A socket that receives the messages of one engine, and the events of its connection. The order between messages and
/// events is unknown.
pub trait EngineSocket {
    /// Receives at most `messages_max` queued messages, and passes them on in batches.
    ///
    /// # Errors
    ///
    /// The cause, when the socket fails.
    fn read_messages(&mut self, messages_max: usize, deliver: &mut dyn FnMut(Vec<Frames>)) -> Result<(), String>;

    /// Connection events since the last call.
    fn connection_events(&mut self) -> Vec<ConnectionEvent>;
}

/// Delivers some of the received messages and the connection's events to the listener's decoder, in order.
///
/// Messages are read before the events, so messages read before a lost connection belong to that connection. If a new
/// connection is reported at the same time, the connection of each message is unknown. These messages are dropped, because
/// messages of two epochs must not be merged. The stream then counts them as messages of the lost connection.
pub fn receive_from(socket: &mut impl EngineSocket, listener: &Arc<Listener>, decoders: &Decoders) {
    let mut read = Vec::new();
    let mut result = socket.read_messages(MESSAGES_PER_TURN_MAX, &mut |messages| read.push(messages));
    let mut events = socket.connection_events();
    if events.contains(&ConnectionEvent::Lost) {
        result = result.and(socket.read_messages(usize::MAX, &mut |messages| read.push(messages)));
        events.extend(socket.connection_events());
    }
    if let Err(error) = result {
        listener.reject("receive_failed", format!("failed to receive: {error}"));
    }
    let lost = events.iter().position(|&event| event == ConnectionEvent::Lost).unwrap_or(events.len());
    let (before, after) = events.split_at(lost);
    before.iter().for_each(|&event| apply_connection_event(event, listener, decoders));
    let is_clear = !after.contains(&ConnectionEvent::Connected);
    if is_clear && !decoders.are_stopping() {
        for messages in std::mem::take(&mut read) {
            decoders.deliver(listener, Delivery::Live(messages));
        }
    }
    let dropped: usize = read.iter().map(Vec::len).sum();
    if dropped > 0 {
        let (last, why) = (last_number(read.iter().flatten()), "messages were received around a reconnect");
        decoders.drop_live(listener, dropped, last, "connection_unclear", why);
    }
    after.iter().for_each(|&event| apply_connection_event(event, listener, decoders));
}

fn apply_connection_event(event: ConnectionEvent, listener: &Arc<Listener>, decoders: &Decoders) {
    match event {
        ConnectionEvent::Connected => decoders.connect(listener),
        ConnectionEvent::Lost if listener.connection() == ConnectionStatus::Connected => {
            decoders.disconnect(listener);
        }
        ConnectionEvent::Lost => {}
    }
}
