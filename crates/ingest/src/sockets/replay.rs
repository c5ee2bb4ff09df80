//! One request for missed messages.

use std::sync::Arc;

use super::subscription::{connect, receive_messages};
use super::{CONNECT_TIMEOUT_MS, MESSAGE_BYTES_MAX, MESSAGES_PER_TURN_MAX, RECEIVE_QUEUE_UNBOUNDED};
use crate::decoders::{Decoders, Delivery};
use crate::listener::Listener;

/// A socket that has is_requested once: a fresh one for each request, so that what comes answers it.
pub(super) struct ReplaySocket {
    listener: Arc<Listener>,
    attempt: u32,
    socket: zmq::Socket,
}

impl ReplaySocket {
    /// Asks the replay endpoint of a listener, given by address, for everything from a number on. Connecting
    /// goes on in the background; whoever has is_requested gives up when nothing comes.
    pub(super) fn request(
        context: &zmq::Context,
        listener: Arc<Listener>,
        endpoint: &str,
        attempt: u32,
        from: u64,
    ) -> zmq::Result<Self> {
        let socket = context.socket(zmq::DEALER)?;
        socket.set_linger(0)?;
        socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
        socket.set_connect_timeout(CONNECT_TIMEOUT_MS)?;
        socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
        connect(&socket, endpoint)?;
        // Engines do not answer without the empty frame.
        socket.send_multipart([&b""[..], &from.to_be_bytes()], zmq::DONTWAIT)?;
        Ok(Self { listener, attempt, socket })
    }

    /// Says that no answer comes.
    pub(super) fn fail(&self, decoders: &Decoders, why: &str) {
        decoders.deliver(&self.listener, Delivery::ReplayFailed { attempt: self.attempt, why: why.to_owned() });
    }

    pub(super) fn poll_item(&self) -> zmq::PollItem<'_> {
        self.socket.as_poll_item(zmq::POLLIN)
    }

    /// Hands some of the answer to the listener's decoder.
    pub(super) fn receive(&self, decoders: &Decoders) {
        let taken = receive_messages(&self.socket, MESSAGES_PER_TURN_MAX, |messages| {
            decoders.deliver(&self.listener, Delivery::Replayed { attempt: self.attempt, messages });
        });
        if let Err(error) = taken {
            let why = format!("failed to receive missed messages: {error}");
            decoders.deliver(&self.listener, Delivery::ReplayFailed { attempt: self.attempt, why });
        }
    }
}
