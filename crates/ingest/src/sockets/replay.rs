//! Replay sockets: one for each replay request.

use std::sync::Arc;

use flash_indexer_curve::Curve;

use super::subscription::{connect, receive_messages};
use super::{CONNECT_TIMEOUT_MS, MESSAGE_BYTES_MAX, RECEIVE_QUEUE_UNBOUNDED};
use crate::decoders::{Decoders, Delivery};
use crate::engine_socket::MESSAGES_PER_TURN_MAX;
use crate::listener::Listener;

/// A socket of one replay request. Each request has its own socket, so every message received belongs to it.
pub(super) struct ReplaySocket {
    listener: Arc<Listener>,
    attempt: u32,
    socket: zmq::Socket,
}

impl ReplaySocket {
    /// Requests all messages from a sequence number on from a replay endpoint, given by address. Connects in the
    /// background; the stream has a timeout for the reply.
    pub(super) fn request(
        context: &zmq::Context,
        curve: Option<&Curve>,
        listener: Arc<Listener>,
        endpoint: &str,
        (attempt, from): (u32, u64),
    ) -> zmq::Result<Self> {
        let socket = context.socket(zmq::DEALER)?;
        socket.set_linger(0)?;
        socket.set_rcvhwm(RECEIVE_QUEUE_UNBOUNDED)?;
        socket.set_connect_timeout(CONNECT_TIMEOUT_MS)?;
        socket.set_maxmsgsize(MESSAGE_BYTES_MAX)?;
        if let (Some(curve), Some(registered)) = (curve, &listener.options.replay_endpoint) {
            curve.secure_client(&socket, registered)?;
        }
        connect(&socket, endpoint)?;
        // Engines do not reply without the empty frame.
        socket.send_multipart([&b""[..], &from.to_be_bytes()], zmq::DONTWAIT)?;
        Ok(Self { listener, attempt, socket })
    }

    /// Reports that the request failed.
    pub(super) fn fail(&self, decoders: &Decoders, why: &str) {
        decoders.deliver(&self.listener, Delivery::ReplayFailed { attempt: self.attempt, why: why.to_owned() });
    }

    pub(super) fn poll_item(&self) -> zmq::PollItem<'_> {
        self.socket.as_poll_item(zmq::POLLIN)
    }

    /// Delivers some of the received messages to the listener's decoder.
    pub(super) fn receive(&self, decoders: &Decoders) {
        let received = receive_messages(&self.socket, MESSAGES_PER_TURN_MAX, |messages| {
            decoders.deliver(&self.listener, Delivery::Replayed { attempt: self.attempt, messages });
        });
        if let Err(error) = received {
            let why = format!("failed to receive replayed messages: {error}");
            decoders.deliver(&self.listener, Delivery::ReplayFailed { attempt: self.attempt, why });
        }
    }
}
