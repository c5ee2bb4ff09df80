//! Names of peers to addresses.

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use crate::endpoints::check_address;

/// The system's resolver, without addresses that no peer may have.
#[derive(Debug, Default)]
pub(super) struct PeerResolver {
    system: DefaultResolver,
}

impl Resolver for PeerResolver {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let found = self.system.resolve(uri, config, timeout)?;
        let (mut allowed, mut first_refused) = (self.empty(), None);
        for address in &found {
            match check_address(address.ip()) {
                Ok(()) => allowed.push(*address),
                Err(refused) => drop(first_refused.get_or_insert(refused)),
            }
        }
        match first_refused.filter(|_| allowed.is_empty()) {
            None => Ok(allowed),
            Some(refused) => Err(Error::Other(Box::new(refused))),
        }
    }
}
