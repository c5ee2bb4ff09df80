//! Discovery source: a DNS name, whose addresses or service records are engines.

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
use flash_indexer_types::InstanceId;

use super::reconcile::Targets;
use super::report::{DiscoveredTargets, Reporter};
use super::template::{EngineTemplate, EngineTraits, url_host};

/// Shortest interval of queries, even for a shorter time to live.
const INTERVAL_MIN: Duration = Duration::from_secs(1);
/// Limit of a query's duration, over all name servers and attempts.
const QUERY_DEADLINE: Duration = Duration::from_secs(20);

/// A DNS name and how it is queried.
#[derive(Debug, Clone)]
pub struct DnsOptions {
    /// The name.
    pub name: DnsName,
    /// Longest interval of queries. A shorter time to live of a response takes precedence.
    pub interval: Duration,
    /// Name server to query; none for the system's.
    pub server: Option<SocketAddr>,
}

/// Hosts that a name resolves to.
struct ResolvedHosts {
    targets: Vec<Host>,
    /// Time to live of the response.
    ttl: Option<Duration>,
}

/// Host of an engine.
struct Host {
    name: String,
    /// Host in an endpoint: IPv6 addresses have brackets.
    host: String,
    port: Option<u16>,
}

/// Queries the name repeatedly, and reports the engines.
pub(super) async fn watch(options: DnsOptions, template: EngineTemplate, reporter: Reporter) {
    // A test injects a panic by this name.
    #[cfg(any(test, feature = "fault-injection"))]
    assert!(!options.name.to_string().contains("dns-fault"), "a test asked for a failure");
    let (mut client, mut full_name) = (None, None);
    loop {
        let resolved = match client.take().map_or_else(|| Client::new(&options), Ok) {
            Ok(connected) => poll(client.insert(connected), &mut full_name, &options).await,
            Err(error) => {
                Err(format!("failed to read the system's resolver configuration: {error}; give a name server"))
            }
        };
        let mut wait = options.interval;
        match resolved {
            Ok(hosts) => {
                wait = hosts.ttl.unwrap_or(wait).clamp(INTERVAL_MIN, wait.max(INTERVAL_MIN));
                reporter.found(found(&hosts.targets, &template));
            }
            Err(error) => {
                // The system's name servers may have changed.
                client = None;
                reporter.failed(error);
            }
        }
        tokio::time::sleep(wait).await;
    }
}

async fn poll(client: &Client, full_name: &mut Option<Name>, options: &DnsOptions) -> Result<ResolvedHosts, String> {
    let name = &options.name;
    let failed = |why: String| format!("failed to resolve {name}: {why}; its engines stay registered");
    match timeout(QUERY_DEADLINE, client.resolve(name, full_name)).await {
        Ok(resolved) => resolved.map_err(|error| failed(error.to_string())),
        Err(_) => Err(failed(format!("no response within {QUERY_DEADLINE:?}"))),
    }
}

/// Ranks of the engines at these hosts.
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

/// A DNS client. `full_name` is the name under which the search list found the name. Later queries use only this name, because a failure
/// within the search list could look like a response without records.
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
        // Polls have their own interval, so nothing is cached.
        builder.options_mut().cache_size = 0;
        Ok(Self { resolver: builder.build()? })
    }

    async fn resolve(&self, name: &DnsName, full_name: &mut Option<Name>) -> Result<ResolvedHosts, NetError> {
        match name {
            DnsName::Services { service } => self.records(service, full_name, RecordType::SRV, None).await,
            // An engine with addresses of both kinds is one engine.
            DnsName::Addresses { host, port } => match self.records(host, full_name, RecordType::A, *port).await? {
                none if none.targets.is_empty() => self.records(host, full_name, RecordType::AAAA, *port).await,
                some => Ok(some),
            },
        }
    }

    /// Hosts of a name's records; none if the name or its records do not exist. Any other negative response is an error.
    async fn records(
        &self,
        name: &str,
        full_name: &mut Option<Name>,
        kind: RecordType,
        port: Option<u16>,
    ) -> Result<ResolvedHosts, NetError> {
        let answer = match full_name {
            Some(full_name) => self.resolver.lookup(full_name.clone(), kind).await,
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
        *full_name = Some(lookup.query().name().clone());
        let ttl = lookup.answers().iter().map(|record| record.ttl).min();
        let targets = lookup.answers().iter().filter_map(|record| match &record.data {
            RData::A(address) => Some(at_address(IpAddr::V4(address.0), port)),
            RData::AAAA(address) => Some(at_address(IpAddr::V6(address.0), port)),
            RData::SRV(service) => {
                let target = service.target.to_utf8();
                let host = target.trim_end_matches('.').to_owned();
                // RFC 2782: a target of "." means that the service is not available.
                (!host.is_empty()).then(|| Host { name: host.clone(), host, port: Some(service.port) })
            }
            _ => None,
        });
        let ttl = ttl.map(|seconds| Duration::from_secs(seconds.into()));
        Ok(ResolvedHosts { targets: targets.collect(), ttl })
    }
}

fn at_address(address: IpAddr, port: Option<u16>) -> Host {
    let name = address.to_string();
    Host { host: url_host(&name), name, port }
}
