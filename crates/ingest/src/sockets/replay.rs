//! Replay sockets: one for each replay request.

use std::sync::Arc;

use flash_indexer_curve::Curve;

use super::subscription::{connect, receive_messages};
use super::{CONNECT_TIMEOUT_MS, open_socket};
use crate::decoders::{Decoders, Delivery};
use crate::engine_socket::MESSAGES_PER_TURN_MAX;
use crate::listener::Listener;

/// A request for all messages of a listener from a sequence number on.
pub(super) struct ReplayRequest {
    pub(super) listener: Arc<Listener>,
    pub(super) attempt: u32,
    pub(super) from: u64,
}

impl ReplayRequest {
    /// Sends the request to a replay endpoint, given by address. Connects in the background; the stream has a timeout for
    /// the reply.
    pub(super) fn send(
        &self,
        context: &zmq::Context,
        curve: Option<&Curve>,
        endpoint: &str,
    ) -> zmq::Result<zmq::Socket> {
        let socket = open_socket(context, zmq::DEALER)?;
        socket.set_connect_timeout(CONNECT_TIMEOUT_MS)?;
        if let (Some(curve), Some(registered)) = (curve, &self.listener.options.replay_endpoint) {
            curve.secure_client(&socket, registered)?;
        }
        connect(&socket, endpoint)?;
        // Engines do not reply without the empty frame.
        socket.send_multipart([&b""[..], &self.from.to_be_bytes()], zmq::DONTWAIT)?;
        Ok(socket)
    }

    /// Reports that the request failed.
    pub(super) fn fail(&self, decoders: &Decoders, why: String) {
        decoders.deliver(&self.listener, Delivery::ReplayFailed { attempt: self.attempt, why });
    }
}

/// A socket of one replay request. Each request has its own socket, so every message received belongs to it.
pub(super) struct ReplaySocket {
    pub(super) request: ReplayRequest,
    pub(super) socket: zmq::Socket,
}

impl ReplaySocket {
    pub(super) fn poll_item(&self) -> zmq::PollItem<'_> {
        self.socket.as_poll_item(zmq::POLLIN)
    }

    /// Delivers some of the received messages to the listener's decoder.
    pub(super) fn receive(&self, decoders: &Decoders) {
        let ReplayRequest { listener, attempt, .. } = &self.request;
        let received = receive_messages(&self.socket, MESSAGES_PER_TURN_MAX, |messages| {
            decoders.deliver(listener, Delivery::Replayed { attempt: *attempt, messages });
        });
        if let Err(error) = received {
            self.request.fail(decoders, format!("failed to receive replayed messages: {error}"));
        }
    }
}
