//! Rates of tenants, against their limits.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::limits::{LimitExceeded, LimitsFile, TENANTS_MAX, TenantLimit, TenantLimits};

/// Recent use of tenants' rates. A rate permits bursts of the amount for one second.
///
/// A prompt is admitted as soon as the tenant has a token left, and then all of its tokens count. So a prompt may be larger than the limit,
/// and the tenant waits after it.
#[derive(Debug)]
pub struct TenantRates {
    limits: Arc<LimitsFile>,
    tenants: RwLock<HashMap<Box<str>, Arc<Mutex<TenantUse>>>>,
    /// Use of the tenants beyond [`TENANTS_MAX`], together.
    others: Arc<Mutex<TenantUse>>,
}

/// Part of a unit that rounding may have added.
const ROUNDING: f64 = 1e-6;

/// Recent use of one tenant.
#[derive(Debug)]
struct TenantUse {
    queries: Bucket,
    tokens: Bucket,
}

/// Token bucket with the capacity of one second. It is full when nothing is used.
#[derive(Debug)]
struct Bucket {
    used: f64,
    updated: Instant,
}

impl Bucket {
    /// Lowers the use by the amount that the time since the last call allows.
    fn recover(&mut self, rate: f64, now: Instant) {
        let elapsed = now.saturating_duration_since(self.updated);
        self.used = elapsed.as_secs_f64().mul_add(-rate, self.used).max(0.0);
        self.updated = self.updated.max(now);
    }

    /// Time until one unit is left; none if one is.
    fn wait(&mut self, rate: f64, now: Instant) -> Option<Duration> {
        self.recover(rate, now);
        let missing = self.used + 1.0 - rate;
        (missing > ROUNDING).then(|| Duration::from_secs_f64(missing / rate))
    }
}

impl TenantUse {
    fn new(now: Instant) -> Self {
        let bucket = || Bucket { used: 0.0, updated: now };
        Self { queries: bucket(), tokens: bucket() }
    }

    /// Whether nothing is used: the value may then be dropped.
    fn is_unused(&mut self, limits: TenantLimits, now: Instant) -> bool {
        let TenantLimits { queries_per_second, prompt_tokens_per_second, .. } = limits;
        let is_unused = |bucket: &mut Bucket, rate: Option<NonZeroU32>| {
            rate.is_none_or(|rate| {
                bucket.recover(rate.get().into(), now);
                bucket.used <= 0.0
            })
        };
        is_unused(&mut self.queries, queries_per_second) && is_unused(&mut self.tokens, prompt_tokens_per_second)
    }
}

impl TenantRates {
    /// Rates against the limits of a file.
    #[must_use]
    pub fn new(limits: Arc<LimitsFile>) -> Self {
        Self { limits, tenants: RwLock::default(), others: Arc::new(Mutex::new(TenantUse::new(Instant::now()))) }
    }

    /// Admits a query with this many prompt tokens, and counts it.
    ///
    /// # Errors
    ///
    /// Fails if the tenant has used up a limit. The request is then not counted.
    pub fn admit(&self, tenant: &str, tokens: usize, now: Instant) -> Result<(), LimitExceeded> {
        let limits = self.limits.of(tenant);
        let TenantLimits { queries_per_second: queries, prompt_tokens_per_second: prompt, .. } = limits;
        if queries.is_none() && prompt.is_none() {
            return Ok(());
        }
        let recent = self.recent(tenant, now);
        let mut recent = recent.lock();
        let TenantUse { queries: used_queries, tokens: used_tokens } = &mut *recent;
        for (limit, rate, bucket) in [
            (TenantLimit::Queries, queries, &mut *used_queries),
            (TenantLimit::PromptTokens, prompt, &mut *used_tokens),
        ] {
            let Some(rate) = rate else { continue };
            if let Some(wait) = bucket.wait(rate.get().into(), now) {
                let (tenant, max) = (tenant.to_owned(), rate.get().into());
                return Err(LimitExceeded { tenant, limit, max, retry_after_s: whole_seconds(wait) });
            }
        }
        used_queries.used += 1.0;
        used_tokens.used += tokens as f64;
        Ok(())
    }

    /// Counts prompt tokens of an admitted query, which are known only now.
    pub fn charge(&self, tenant: &str, tokens: usize, now: Instant) {
        if self.limits.of(tenant).prompt_tokens_per_second.is_some() {
            self.recent(tenant, now).lock().tokens.used += tokens as f64;
        }
    }

    fn recent(&self, tenant: &str, now: Instant) -> Arc<Mutex<TenantUse>> {
        // A panic leaves a map that is complete.
        let known = self.tenants.read().unwrap_or_else(PoisonError::into_inner).get(tenant).cloned();
        known.unwrap_or_else(|| {
            let mut tenants = self.tenants.write().unwrap_or_else(PoisonError::into_inner);
            if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
                tenants.retain(|tenant, recent| !recent.lock().is_unused(self.limits.of(tenant), now));
                if tenants.len() >= TENANTS_MAX {
                    return Arc::clone(&self.others);
                }
            }
            Arc::clone(tenants.entry(tenant.into()).or_insert_with(|| Arc::new(Mutex::new(TenantUse::new(now)))))
        })
    }
}

fn whole_seconds(wait: Duration) -> u32 {
    u32::try_from(wait.as_secs()).unwrap_or(u32::MAX).saturating_add(u32::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn rates(text: &str) -> TenantRates {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), text).expect("a file");
        TenantRates::new(Arc::new(LimitsFile::load(file.path()).expect("limits")))
    }

    #[test]
    fn a_rate_permits_a_second_at_once_and_then_its_share() {
        let rates = rates("[default]\nqueries_per_second = 4\n");
        let start = Instant::now();
        let admitted = |tenant: &str, at: Duration| rates.admit(tenant, 0, start + at).is_ok();
        let at_once = (0..10).filter(|_| admitted("a", Duration::ZERO)).count();
        assert_eq!(at_once, 4);
        assert!(admitted("b", Duration::ZERO), "each tenant has its own rate");
        let refused = rates.admit("a", 0, start).expect_err("the limit is reached");
        assert_eq!((refused.limit, refused.max, refused.retry_after_s), (TenantLimit::Queries, 4, 1));
        assert!(!admitted("a", SECOND / 5));
        assert!(admitted("a", SECOND / 4), "a quarter of a second allows one");
        assert!(!admitted("a", SECOND / 4));
        let later = (0..10).filter(|_| admitted("a", 100 * SECOND)).count();
        assert_eq!(later, 4, "unused time does not accumulate");
        assert!(!admitted("a", Duration::ZERO), "an earlier time restores nothing");
    }

    #[test]
    fn a_large_prompt_is_admitted_and_then_paid_for() {
        let rates = rates("[tenants.a]\nprompt_tokens_per_second = 100\n");
        let start = Instant::now();
        rates.admit("a", 1_000, start).expect("the bucket is full");
        let refused = rates.admit("a", 1, start).expect_err("the tenant has to wait");
        assert_eq!((refused.limit, refused.retry_after_s), (TenantLimit::PromptTokens, 10));
        assert!(rates.admit("a", 1, start + 9 * SECOND).is_err());
        rates.admit("a", 0, start + 10 * SECOND).expect("it is paid for");
        rates.charge("a", 500, start + 10 * SECOND);
        assert!(rates.admit("a", 0, start + 11 * SECOND).is_err(), "tokens that are known later count too");
        for _ in 0..1_000 {
            rates.admit("b", 1_000, start).expect("it has no limit");
        }
    }

    #[test]
    fn the_number_of_tenants_is_limited_and_unused_ones_are_forgotten() {
        let rates = rates("[default]\nqueries_per_second = 1\n");
        let start = Instant::now();
        for tenant in 0..TENANTS_MAX {
            rates.admit(&tenant.to_string(), 0, start).expect("each has one");
        }
        rates.admit("x", 0, start).expect("the others have one together");
        assert!(rates.admit("y", 0, start).is_err());
        assert!(rates.admit("0", 0, start).is_err(), "a known tenant keeps its own");
        rates.admit("x", 0, start + 2 * SECOND).expect("unused tenants made room");
        rates.admit("y", 0, start + 2 * SECOND).expect("unused tenants made room");
        assert_eq!(rates.tenants.read().expect("no panic").len(), 2);
    }
}
