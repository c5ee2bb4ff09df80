//! Resolution of peers' host names.

use flash_indexer_types::networks::EngineNetworks;
use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

/// System resolver that rejects addresses that peers must not use.
#[derive(Debug, Default)]
pub(super) struct PeerResolver {
    system: DefaultResolver,
    networks: EngineNetworks,
}

impl PeerResolver {
    pub(super) fn new(networks: EngineNetworks) -> Self {
        Self { system: DefaultResolver::default(), networks }
    }
}

impl Resolver for PeerResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.system.resolve(uri, config, timeout)?;
        let permitted = self.networks.permitted(&found).map_err(|refused| Error::Other(Box::new(refused)))?;
        let mut allowed = self.empty();
        permitted.into_iter().for_each(|address| allowed.push(address));
        Ok(allowed)
    }
}

#[cfg(test)]
mod tests {
    use ureq::Agent;
    use ureq::unversioned::transport::DefaultConnector;

    use super::*;

    #[test]
    fn a_name_that_resolves_to_a_refused_address_is_refused() {
        // A numeric notation of an address, which the system resolver accepts as a name.
        let agent = Agent::with_parts(Config::default(), DefaultConnector::default(), PeerResolver::default());
        let error = agent.get("http://2852039166:80").call().expect_err("the address is refused").to_string();
        assert!(error.contains("169.254.169.254 is a link-local address"), "{error}");
    }
}
