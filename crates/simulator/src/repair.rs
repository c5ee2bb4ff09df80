//! Comparison of ranks with a peer's, and rebuilding of instances next to the registered ones.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use flash_indexer_ingest::{ListenerReport, ReadAt};
use flash_indexer_registry::Shadow;
use flash_indexer_snapshot::read_dump;
use flash_indexer_types::{ConnectionStatus, InstanceId, ModelKey, Trust};

use crate::action::{RepairSource, RepairStep};
use crate::service::{Repair, Service, model, reports};
use crate::world::World;

/// Longest wait for the message of a digest. In a simulation it has passed once no thread has work.
const DIGEST_DEADLINE: Duration = Duration::from_secs(5);

impl World {
    /// Makes one step of a rebuild.
    pub(crate) fn repair(&mut self, step: RepairStep) -> Result<(), String> {
        match step {
            RepairStep::Begin { service, engine, source } => self.begin_repair(service, engine, source)?,
            RepairStep::Fill { service } => self.fill_repair(service),
            RepairStep::Exchange { service } => self.exchange_repaired(service),
        }
        Ok(())
    }

    /// Opens a second copy of an engine's instance.
    fn begin_repair(&mut self, number: usize, engine: usize, source: RepairSource) -> Result<(), String> {
        let service = &self.services[number];
        if service.repair.is_some() || service.is_recovering() {
            return Ok(());
        }
        let spec = &self.engines[engine].spec;
        let (key, instance) = (model(spec), InstanceId::number(spec.instance));
        if source == RepairSource::Peer && !self.is_better_at_peer(number, &key, &instance)? {
            return Ok(());
        }
        // It fails if the instance is not registered, or lacks its last messages.
        let service = &mut self.services[number];
        service.opens_shadows.store(true, Relaxed);
        let shadow = Shadow::of(&service.indexer, &key, &instance).ok();
        service.opens_shadows.store(false, Relaxed);
        service.repair = shadow.map(|shadow| Repair { shadow, source, is_resumed: false, last: BTreeMap::new() });
        Ok(())
    }

    /// Whether a rank of an instance is exact at the other service alone, at the same message, and no rank is worse there.
    ///
    /// # Errors
    ///
    /// When both are exact at the same message and hold different blocks.
    fn is_better_at_peer(&self, number: usize, key: &ModelKey, instance: &InstanceId) -> Result<bool, String> {
        let [first, second] = self.services.as_slice() else { return Ok(false) };
        let (ours, theirs) = if number == 0 { (first, second) } else { (second, first) };
        if theirs.is_recovering() {
            return Ok(false);
        }
        let (our_reports, their_reports) = (reports(ours), reports(theirs));
        let is_comparable =
            |report: &ListenerReport| report.status == ConnectionStatus::Connected && report.trust != Trust::Recovering;
        let mut is_better = false;
        for (rank, our) in our_reports.iter().filter(|(rank, _)| rank.model == *key && rank.instance == *instance) {
            let Some(their) = their_reports.get(rank).filter(|their| their.trust <= our.trust) else {
                return Ok(false);
            };
            // A service that has received no message has no state to compare.
            if our.last_seq.is_none() && their.trust == Trust::Exact && is_comparable(our) && is_comparable(their) {
                is_better = true;
                continue;
            }
            let Some(at) = our.last_seq.max(their.last_seq).filter(|_| is_comparable(our) && is_comparable(their))
            else {
                continue;
            };
            let digest = |service: &Service| {
                let record = service.indexer.digest(rank, ReadAt::Message(at), DIGEST_DEADLINE).ok()?;
                Some((record.stream?, record.holds))
            };
            let (Some((our, our_blocks)), Some((their, their_blocks))) = (digest(ours), digest(theirs)) else {
                continue;
            };
            let is_same = our.cursor == their.cursor;
            if is_same && our.trust == Trust::Exact && their.trust == Trust::Exact && our_blocks != their_blocks {
                return Err(format!("both services are exact about {rank} after message {at}, and hold other blocks"));
            }
            is_better |= is_same && our.trust != Trust::Exact && their.trust == Trust::Exact;
        }
        Ok(is_better)
    }

    /// Restores the state of the peer, if it is to fill the copy, and releases the streams of the copy.
    fn fill_repair(&mut self, number: usize) {
        let peer = self.services.len() - 1 - number;
        let dump = (peer != number && !self.services[peer].is_recovering()).then(|| self.services[peer].dump());
        let Some(mut repair) = self.services[number].repair.take_if(|repair| !repair.is_resumed) else { return };
        if repair.source != RepairSource::Engine {
            let Some(dump) = dump.filter(|dump| read_dump(&dump.bytes[..], &mut repair.shadow).is_ok()) else { return };
            repair.last = dump.last;
        }
        repair.shadow.resume();
        repair.is_resumed = true;
        self.services[number].repair = Some(repair);
    }

    /// Replaces the registered instance by its copy, unless the engine was to fill it and has not.
    fn exchange_repaired(&mut self, number: usize) {
        let Some(Repair { shadow, source, last, .. }) =
            self.services[number].repair.take_if(|repair| repair.is_resumed)
        else {
            return;
        };
        let is_filled = source != RepairSource::Engine || (shadow.can_replay() && shadow.is_exact());
        // It fails if the registration changed meanwhile.
        if is_filled && shadow.exchange().is_ok() {
            if source != RepairSource::Engine {
                self.services[number].record_import(&last);
            }
            self.coverage.rebuilds += 1;
        }
    }
}
