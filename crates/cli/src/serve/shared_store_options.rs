//! Options of `serve` for the shared store.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use flash_indexer_redis::{Credentials, Namespace, StoreOptions, StoreUrl};

#[derive(Args)]
#[command(next_help_heading = "An index shared through Redis or Valkey (docs/redis.md)")]
pub(crate) struct SharedStoreArguments {
    /// Share the index with other replicas through this store, so that each replica answers for the engines of all:
    /// redis://host:port[/database], redis+cluster://host:port,host:port or redis+sentinel://host:port,host:port/master
    /// (the sentinels' addresses); rediss for TLS, user:password@ before the hosts.
    #[arg(long, env = "FLASH_INDEXER_REDIS", value_name = "URL", hide_env_values = true)]
    redis: Option<StoreUrl>,

    /// User of the store, if --redis has none.
    #[arg(long, env = "FLASH_INDEXER_REDIS_USER", requires = "redis", value_name = "NAME")]
    redis_user: Option<String>,

    /// File with the password of the store, if --redis has none. FLASH_INDEXER_REDIS_PASSWORD is the password itself.
    #[arg(long, env = "FLASH_INDEXER_REDIS_PASSWORD_FILE", requires = "redis", value_name = "FILE")]
    redis_password_file: Option<PathBuf>,

    /// File with the CA certificates, in PEM, that verify the store's certificate [default: the system's CAs].
    #[arg(long, env = "FLASH_INDEXER_REDIS_CA", requires = "redis", value_name = "FILE")]
    redis_ca: Option<PathBuf>,

    /// Prefix of all keys in the store; replicas with the same namespace share an index.
    #[arg(long, env = "FLASH_INDEXER_REDIS_NAMESPACE", default_value = "fi", value_name = "NAME")]
    redis_namespace: Namespace,

    /// Lease of a replica's ranks in the store, in milliseconds. A replica renews it three times in that time; after a
    /// replica's death its ranks stay in answers until the lease expires.
    #[arg(long, env = "FLASH_INDEXER_REDIS_TTL_MS", default_value_t = 3_000, value_parser = clap::value_parser!(u64).range(300..=600_000), value_name = "MS")]
    redis_ttl_ms: u64,

    /// Deadline of a query's call to the store, in milliseconds; after it, the answer lacks other replicas' ranks.
    #[arg(long, env = "FLASH_INDEXER_REDIS_DEADLINE_MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=60_000), value_name = "MS")]
    redis_deadline_ms: u64,
}

impl SharedStoreArguments {
    /// Options of the store, if `--redis` is given.
    pub(crate) fn options(&self) -> Result<Option<StoreOptions>> {
        let Some(url) = self.redis.clone() else { return Ok(None) };
        let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("failed to read {}", path.display()));
        let password = match &self.redis_password_file {
            Some(path) => Some(String::from_utf8(read(path)?).context("--redis-password-file is not text")?),
            None => std::env::var("FLASH_INDEXER_REDIS_PASSWORD").ok(),
        };
        Ok(Some(StoreOptions {
            credentials: Credentials {
                user: self.redis_user.clone(),
                password: password.map(|password| password.trim_end().to_owned()),
                authorities: self.redis_ca.as_ref().map(read).transpose()?,
            },
            namespace: self.redis_namespace.clone(),
            time_to_live: Duration::from_millis(self.redis_ttl_ms),
            deadline: Duration::from_millis(self.redis_deadline_ms),
            ..StoreOptions::at(url)
        }))
    }
}
