//! Live sockets of many engines, without replay.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Sockets of one context; ZeroMQ allows 1,023.
const CONTEXT_SOCKETS: usize = 500;
/// Messages that are queued for a slow subscriber.
const UNSENT_MAX: i32 = 1 << 20;

/// One bound socket for each engine.
pub(super) struct LiveSockets {
    /// Each with the number of messages that it has published.
    sockets: Vec<(zmq::Socket, u64)>,
}

impl LiveSockets {
    pub(super) fn bind(engines: usize) -> Result<Self> {
        Self::bind_in_contexts(engines, CONTEXT_SOCKETS)
    }

    /// Binds a socket for each engine, each with its own ZeroMQ thread.
    pub(super) fn bind_apart(engines: usize) -> Result<Self> {
        Self::bind_in_contexts(engines, 1)
    }

    fn bind_in_contexts(engines: usize, context_sockets: usize) -> Result<Self> {
        let mut sockets = Vec::with_capacity(engines);
        let mut context = zmq::Context::new();
        for engine in 0..engines {
            if engine % context_sockets == 0 {
                context = zmq::Context::new();
            }
            // An XPUB receives subscriptions as messages.
            let socket = context.socket(zmq::XPUB)?;
            socket.set_sndhwm(UNSENT_MAX)?;
            socket.set_linger(0)?;
            socket.bind("tcp://127.0.0.1:*")?;
            sockets.push((socket, 0));
        }
        Ok(Self { sockets })
    }

    pub(super) fn endpoints(&self) -> Result<Vec<String>> {
        let endpoints = self.sockets.iter().map(|(socket, _)| Ok(socket.get_last_endpoint()?.unwrap_or_default()));
        endpoints.collect()
    }

    /// Waits until every socket has a subscriber. Returns the number of sockets with a subscriber at the deadline.
    pub(super) fn wait_for_subscribers(&self, deadline: Duration) -> Result<usize> {
        let started = Instant::now();
        let mut subscribed = 0;
        for (socket, _) in &self.sockets {
            let left = deadline.saturating_sub(started.elapsed());
            if socket.poll(zmq::POLLIN, i64::try_from(left.as_millis()).unwrap_or(i64::MAX))? > 0 {
                subscribed += 1;
            }
        }
        Ok(subscribed)
    }

    /// Publishes the batches of each engine, one of each in turn.
    pub(super) fn publish(&mut self, batches: &[Vec<Vec<u8>>]) -> Result<()> {
        for at in 0..batches.iter().map(Vec::len).max().unwrap_or(0) {
            for (engine, batches) in batches.iter().enumerate() {
                self.publish_to(engine, batches.get(at).map_or(&[], std::slice::from_ref))?;
            }
        }
        Ok(())
    }

    /// Publishes the batches of all engines at once, each on its own thread.
    pub(super) fn publish_side_by_side<'b>(&mut self, batches: &'b [Vec<Vec<u8>>]) -> Result<()> {
        std::thread::scope(|scope| {
            let publishing = |(socket, batches): (_, &'b Vec<_>)| scope.spawn(move || publish(socket, batches));
            let threads: Vec<_> = self.sockets.iter_mut().zip(batches).map(publishing).collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?)
        })
    }

    /// Publishes batches of one engine.
    pub(super) fn publish_to(&mut self, engine: usize, batches: &[Vec<u8>]) -> Result<()> {
        publish(&mut self.sockets[engine], batches)
    }
}

fn publish((socket, published): &mut (zmq::Socket, u64), batches: &[Vec<u8>]) -> Result<()> {
    for batch in batches {
        socket.send_multipart([b"kv-events".as_slice(), &published.to_be_bytes(), batch], 0)?;
        *published += 1;
    }
    Ok(())
}
