//! State of one rank, and the application of engine events to its blocks.

use std::fmt::Display;
use std::sync::Arc;

use flash_indexer_core::groups::RankEvent;
use flash_indexer_core::{AppliedChanges, BlockEvent, DpRank, SharedIndex, WorkerRank};
use flash_indexer_wire::{
    Application, BlockStored, EngineEvent, EventError, InferredLoss, TranslateError, Translator, TranslatorOptions,
};

use crate::effects::losses;
use crate::options::EngineOptions;
use crate::report::MessageReport;
use crate::state::IndexState;
use crate::trust::{AppliedTrust, PublishedTrust};

#[derive(Debug)]
pub(crate) struct RankState {
    rank: WorkerRank,
    /// The stream that publishes the rank's events, named by its own rank. None while the rank has only direct changes.
    pub(crate) stream: Option<DpRank>,
    /// None until an engine event was received since the last clear.
    translator: Option<Translator>,
    /// Trust of the rank, if it differs from the trust of its stream.
    pub(crate) own: Option<AppliedTrust>,
    /// Whether the loss of content that no message can contain is recorded.
    is_content_lost: bool,
    pub(crate) published: Arc<PublishedTrust>,
}

impl RankState {
    pub(crate) fn new(rank: WorkerRank, published: Arc<PublishedTrust>) -> Self {
        Self { rank, stream: None, translator: None, own: None, is_content_lost: false, published }
    }

    /// Records a lost change. Keeps the first one since the rank was complete.
    pub(crate) fn lose(&mut self, why: &dyn Display) {
        if !matches!(self.own, Some(AppliedTrust::Lost(_))) {
            self.own = Some(AppliedTrust::Lost(why.to_string()));
        }
    }

    /// Drops the rank's blocks and all state about them. The trust of its stream then applies.
    pub(crate) fn forget(&mut self, shared: &IndexState) {
        shared.index.clear_rank(self.rank);
        self.translator = None;
        self.follow_stream();
    }

    /// Assigns the rank to a stream. The stream's trust applies unless the rank has lost a direct change.
    pub(crate) fn join(&mut self, stream: DpRank) {
        self.stream = Some(stream);
        if self.own == Some(AppliedTrust::Exact) {
            self.own = None;
        }
    }

    /// Applies the trust of the rank's stream to the rank.
    pub(crate) fn follow_stream(&mut self) {
        self.own = None;
        // The next batch records it again.
        self.is_content_lost = false;
    }

    /// Applies a change that does not come from an engine's message.
    pub(crate) fn apply_direct(&mut self, shared: &IndexState, event: &BlockEvent) -> AppliedChanges {
        if self.stream.is_none() && self.own.is_none() {
            self.own = Some(AppliedTrust::Exact);
        }
        let mut report = MessageReport::default();
        if *event == BlockEvent::Cleared {
            self.translator = None;
            self.is_content_lost = false;
            self.own = Some(AppliedTrust::Exact);
        }
        self.apply(shared, &RankEvent::Primary(event.clone()), &mut report);
        report.applied
    }

    /// Applies one event of the rank's engine.
    pub(crate) fn apply_event(
        &mut self,
        shared: &IndexState,
        options: &EngineOptions,
        event: Result<EngineEvent<'_>, EventError>,
        report: &mut MessageReport,
    ) {
        let event = match event {
            Ok(EngineEvent::Inactive(_)) => return,
            Ok(event) => event,
            Err(error) => {
                report.reject(error.reason(), &error);
                // An event of an unknown kind may have changed the cache as well.
                return self.lose(&error);
            }
        };
        let (rank, index) = (self.rank, &shared.index);
        let translator = self.translator.get_or_insert_with(|| {
            Translator::new(TranslatorOptions {
                block_size: shared.block_size,
                lora_name: options.lora_name.clone(),
                removed_copies: options.removed_copies,
                cache_tier: None,
            })
        });
        let mut changes = match translator.translate(&event) {
            Ok(changes) => changes,
            Err(unusable) => return self.reject(&unusable, report),
        };
        shared.windows.record(translator.window());
        let doubt = changes.doubt.take();
        let has_salt = translator.adapter_salt().salt().is_some();
        let has_forgotten_salts = translator.has_forgotten_salts();
        let is_complete = translator.is_complete();
        if matches!(event, EngineEvent::Stored(_)) && has_salt && index.size(rank).waiting > 0 {
            self.lose(&InferredLoss::SaltedStore);
        }
        let application = Application::of(&event, options.removed_copies);
        for change in changes {
            if let RankEvent::Primary(BlockEvent::Copied { blocks, .. }) = &change
                && has_forgotten_salts
                && blocks.iter().any(|&block| !index.is_held(rank, block))
            {
                self.lose(&InferredLoss::CopySalt);
            }
            match application {
                Application::AsPublished => self.apply(shared, &change, report),
                Application::Refresh => {
                    let parts = index.without_held(rank, change);
                    parts.iter().for_each(|part| self.apply(shared, part, report));
                }
                Application::MoveLastCopy => {
                    if index.removes_several_copies(rank, &change) {
                        report.reject(InferredLoss::MOVED_COPIES_UNKNOWN, &InferredLoss::MovedCopies);
                        self.lose(&InferredLoss::MovedCopies);
                    }
                    self.apply(shared, &change, report);
                }
            }
        }
        if let EngineEvent::Stored(BlockStored { parent_block_hash: Some(parent), .. }) = event
            && has_forgotten_salts
            && !has_salt
            && !index.is_held(rank, parent)
        {
            self.lose(&InferredLoss::ParentSalt);
        }
        if let Some(doubt) = doubt {
            self.reject(&doubt, report);
        }
        if event == EngineEvent::Cleared && is_complete {
            // The rank's cache is empty, so earlier losses have no effect.
            self.own = Some(AppliedTrust::Exact);
        }
    }

    /// Records, at the end of a batch, content that the rank's events cannot show: within a batch, secondary groups may come first.
    pub(crate) fn end_batch(&mut self) {
        let Some(translator) = &self.translator else { return };
        let Some(why) = translator.content_loss() else {
            self.is_content_lost = false;
            return;
        };
        if !std::mem::replace(&mut self.is_content_lost, true) {
            self.lose(&why);
        }
    }

    fn apply(&mut self, shared: &IndexState, change: &RankEvent, report: &mut MessageReport) {
        let applied = shared.index.apply_event(self.rank, change);
        report.applied += applied;
        for loss in losses(change, &applied) {
            if let Some(reason) = loss.reason {
                report.reject(reason, &loss.why);
            }
            self.lose(&loss.why);
        }
    }

    fn reject(&mut self, unusable: &TranslateError, report: &mut MessageReport) {
        report.reject(unusable.reason(), unusable);
        // A medium outside the queried tiers: the tiers stay exact.
        if !matches!(unusable, TranslateError::UnknownMedium { .. }) {
            self.lose(unusable);
        }
    }
}
