//! Bound pods as listeners name them, and their queues.

use flash_indexer_types::InstanceId;
use flash_indexer_types::endpoints::is_bound;
use flash_indexer_types::pods::PodName;

use crate::listener::{Listener, ListenerOptions};

impl ListenerOptions {
    /// Whether the messages arrive over the bound socket.
    pub fn is_bound(&self) -> bool {
        is_bound(&self.endpoint)
    }

    /// Whether the listener needs no socket of its own.
    pub fn needs_no_socket(&self) -> bool {
        self.is_bound() && self.replay_endpoint.is_none() || !self.has_events()
    }
}

impl Listener {
    /// Name of the listener's pod, if its messages arrive over the bound socket.
    pub fn pod_name(&self) -> PodName {
        PodName { instance: self.instance.clone(), model_name: self.model.key().model_name.clone() }
    }
}

/// Queue of a pod, out of `queues`: FNV-1a of its name.
pub(crate) fn queue_for(instance: &InstanceId, queues: usize) -> usize {
    let hash = fnv_1a(instance.as_key().as_bytes());
    (hash % queues.max(1) as u64) as usize
}

/// FNV-1a with 64 bits.
fn fnv_1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_chosen_by_fnv_1a() {
        // The function's published test values.
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(fnv_1a(text.as_bytes()), hash);
        }
        let pods = (0..1_000).map(|number| InstanceId::parse(&format!("vllm-{number}")).expect("a name"));
        let mut counts = [0; 8];
        pods.for_each(|pod| counts[queue_for(&pod, 8)] += 1);
        assert!(counts.iter().all(|&count| count > 80), "{counts:?}");
    }
}
