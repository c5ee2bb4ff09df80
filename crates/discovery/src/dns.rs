//! Engines that a name in DNS stands for: its addresses, or the targets of its service records.

mod name;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use tokio::time::timeout;

pub use self::name::{DnsName, DnsNameError};
use super::reconcile::Targets;
use super::report::{DiscoveredTargets, Reporter};
use super::template::{EngineTemplate, EngineTraits};
use flash_indexer_types::InstanceId;

/// A name is not asked for more often than this, whatever its time to live.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// An answer may take so long, over all name servers and attempts.
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

/// A name in DNS that stands for engines.
#[derive(Debug, Clone)]
pub struct DnsOptions {
    /// The name.
    pub name: DnsName,
    /// Longest time between two questions; a shorter time to live of an answer counts.
    pub interval: Duration,
    /// Registrar is asked; none for the system's name servers.
    pub server: Option<SocketAddr>,
}

/// What a name stands for.
struct ResolvedHosts {
    targets: Vec<Host>,
    /// How long it stays so.
    ttl: Option<Duration>,
}

/// Where an engine is.
struct Host {
    name: String,
    /// As in an endpoint.
    host: String,
    port: Option<u16>,
}

/// Asks again and again.
pub(super) async fn watch(options: DnsOptions, template: EngineTemplate, reporter: Reporter) {
    // No name is known to make the task fail, so one does.
    #[cfg(any(test, feature = "fault-injection"))]
    assert!(!options.name.to_string().contains("dns-fault"), "a test asked for a failure");
    let (mut client, mut whole) = (None, None);
    loop {
        let looked = match client.take().map_or_else(|| Client::new(&options), Ok) {
            Ok(kept) => look(client.insert(kept), &mut whole, &options).await,
            Err(error) => Err(format!("failed to read how names are resolved here: {error}")),
        };
        let mut wait = options.interval;
        match looked {
            Ok(resolved) => {
                wait = resolved.ttl.unwrap_or(wait).clamp(INTERVAL_MIN, wait.max(INTERVAL_MIN));
                reporter.found(found(&resolved.targets, &template));
            }
            Err(error) => {
                // Registrar is to be asked may have changed.
                client = None;
                reporter.failed(error);
            }
        }
        tokio::time::sleep(wait).await;
    }
}

async fn look(client: &Client, whole: &mut Option<Name>, options: &DnsOptions) -> Result<ResolvedHosts, String> {
    let name = &options.name;
    let failed = |why: String| format!("failed to resolve {name}: {why}; what it stood for before stays");
    match timeout(ANSWER_DEADLINE, client.resolve(name, whole)).await {
        Ok(resolved) => resolved.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("no answer within {ANSWER_DEADLINE:?}"))),
    }
}

/// Engines at these hosts.
fn found(hosts: &[Host], template: &EngineTemplate) -> DiscoveredTargets {
    let mut ports: BTreeMap<&str, Vec<&Host>> = BTreeMap::new();
    for host in hosts {
        ports.entry(&host.name).or_default().push(host);
    }
    let (mut targets, mut problems) = (Targets::new(), Vec::new());
    for (name, mut hosts) in ports {
        hosts.sort_by_key(|host| host.port);
        if hosts.len() > 1 {
            let others: Vec<String> = hosts[1..].iter().filter_map(|host| Some(host.port?.to_string())).collect();
            problems.push(format!("{name} has several ports: {} and the lowest one is used", others.join(", ")));
        }
        let traits = EngineTraits { port: hosts[0].port, ..EngineTraits::default() };
        let added = InstanceId::parse(name).map_err(|error| error.to_string()).and_then(|instance| {
            template.add_ranks(&mut targets, &instance, &hosts[0].host, &traits).map_err(|error| error.to_string())
        });
        if let Err(error) = added {
            problems.push(format!("{name}: {error}"));
        }
    }
    DiscoveredTargets::new(targets, problems)
}

/// `whole` is the name that a name was found under. From then on it alone is asked for: a failure on the way through the
/// search list could look like an answer.
struct Client {
    resolver: TokioResolver,
}

impl Client {
    fn new(options: &DnsOptions) -> Result<Self, NetError> {
        let mut builder = match options.server {
            None => TokioResolver::builder_tokio()?,
            Some(server) => {
                let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
                    connection.port = server.port();
                    connection
                });
                let server = NameServerConfig::new(server.ip(), true, connections.into());
                let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
                TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
            }
        };
        // It is asked when it is to be asked.
        builder.options_mut().cache_size = 0;
        Ok(Self { resolver: builder.build()? })
    }

    async fn resolve(&self, name: &DnsName, whole: &mut Option<Name>) -> Result<ResolvedHosts, NetError> {
        match name {
            DnsName::Services { service } => self.records(service, whole, RecordType::SRV, None).await,
            // An engine with addresses of both kinds is one engine.
            DnsName::Addresses { host, port } => match self.records(host, whole, RecordType::A, *port).await? {
                none if none.targets.is_empty() => self.records(host, whole, RecordType::AAAA, *port).await,
                some => Ok(some),
            },
        }
    }

    /// Targets of a name's records; none if there is no such name or it has no such records. Anything else that is not
    /// an answer is an error.
    async fn records(
        &self,
        name: &str,
        whole: &mut Option<Name>,
        kind: RecordType,
        port: Option<u16>,
    ) -> Result<ResolvedHosts, NetError> {
        let answer = match whole {
            Some(whole) => self.resolver.lookup(whole.clone(), kind).await,
            None => self.resolver.lookup(name, kind).await,
        };
        let lookup = match answer {
            Ok(lookup) => lookup,
            Err(NetError::Dns(DnsError::NoRecordsFound(none)))
                if [ResponseCode::NXDomain, ResponseCode::NoError].contains(&none.response_code) =>
            {
                let ttl = none.negative_ttl.map(|seconds| Duration::from_secs(seconds.into()));
                return Ok(ResolvedHosts { targets: Vec::new(), ttl });
            }
            Err(error) => return Err(error),
        };
        *whole = Some(lookup.query().name().clone());
        let ttl = lookup.answers().iter().map(|record| record.ttl).min();
        let targets = lookup.answers().iter().filter_map(|record| match &record.data {
            RData::A(address) => Some(at_address(IpAddr::V4(address.0), port)),
            RData::AAAA(address) => Some(at_address(IpAddr::V6(address.0), port)),
            RData::SRV(service) => {
                let target = service.target.to_utf8();
                let host = target.trim_end_matches('.').to_owned();
                // "There is decidedly no such service here", says RFC 2782.
                (!host.is_empty()).then(|| Host { name: host.clone(), host, port: Some(service.port) })
            }
            _ => None,
        });
        let ttl = ttl.map(|seconds| Duration::from_secs(seconds.into()));
        Ok(ResolvedHosts { targets: targets.collect(), ttl })
    }
}

fn at_address(address: IpAddr, port: Option<u16>) -> Host {
    let host = match address {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => format!("[{address}]"),
    };
    Host { name: address.to_string(), host, port }
}
