//! Addresses at which instances serve their clients' requests.

use std::net::{IpAddr, SocketAddr};

use flash_indexer_types::{InstanceId, ModelKey};

use super::Indexer;

impl Indexer {
    /// The instances of a model that are registered with this replica and whose address is known: an instance that is named
    /// by an IP address, with or without a port, or whose events come from one. Linear in the ranks.
    ///
    /// `port` is the port of instances whose name has none.
    pub fn addresses(&self, key: &ModelKey, port: u16) -> Vec<(InstanceId, SocketAddr)> {
        let Ok(model) = self.model(key) else { return Vec::new() };
        let instances = model.instances.read();
        let addresses = instances.iter().filter_map(|(instance, known)| {
            let endpoints = known.listeners.values().map(|listener| listener.options.endpoint.as_str());
            Some((instance.clone(), address(instance.as_key(), endpoints, port)?))
        });
        addresses.collect()
    }

    /// The models of a tenant that are registered with this replica.
    pub fn models_of_tenant(&self, tenant_id: &str) -> Vec<ModelKey> {
        self.models_of(None, Some(tenant_id)).iter().map(|model| model.key.clone()).collect()
    }
}

fn address<'e>(name: &str, mut endpoints: impl Iterator<Item = &'e str>, port: u16) -> Option<SocketAddr> {
    if let Ok(address) = name.parse() {
        return Some(address);
    }
    let host = name.parse::<IpAddr>().ok();
    let host = host.or_else(|| {
        endpoints.find_map(|endpoint| Some(endpoint.strip_prefix("tcp://")?.parse::<SocketAddr>().ok()?.ip()))
    });
    Some(SocketAddr::new(host?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_that_of_the_name_or_of_the_events() {
        let of = |name: &str, endpoints: &[&str]| {
            address(name, endpoints.iter().copied(), 8000).map(|address| address.to_string())
        };
        assert_eq!(of("10.0.0.1:9000", &["tcp://10.0.0.2:5557"]).as_deref(), Some("10.0.0.1:9000"));
        assert_eq!(of("10.0.0.1", &[]).as_deref(), Some("10.0.0.1:8000"));
        assert_eq!(of("fd00::1", &[]).as_deref(), Some("[fd00::1]:8000"));
        assert_eq!(of("pod-a", &["ipc://a", "tcp://10.0.0.2:5557"]).as_deref(), Some("10.0.0.2:8000"));
        assert_eq!(of("7", &["tcp://[fd00::2]:5557"]).as_deref(), Some("[fd00::2]:8000"));
        assert_eq!(of("pod-a", &["tcp://pod-a.vllm:5557"]), None, "a name is not resolved");
        assert_eq!(of("pod-a", &[]), None);
    }
}
