//! Storage of which a snapshot is taken before this host is let in to it.

use std::sync::Arc;

use async_trait::async_trait;

use super::snapshot::Snapshots;
use recovery::model::{Epoch, Grace, HeldLock};
use recovery::ports::{Note, StepError, Storage};

/// Takes snapshots first, then attaches.
pub(super) struct Snapshotted {
    pub(super) snapshots: Snapshots,
    pub(super) inner: Arc<dyn Storage>,
}

#[async_trait]
impl Storage for Snapshotted {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    /// Old ones are deleted beside the rest of the step, which does not depend on it.
    async fn attach(&self, epoch: Epoch) -> Result<Note, StepError> {
        let taken = self.snapshots.take(epoch).await?;
        let (attached, pruned) = tokio::join!(self.inner.attach(epoch), self.snapshots.prune(&taken, epoch));
        let mut note = taken.note.and(attached?).and(pruned);
        note.details.retain(|_, value| !value.is_empty());
        Ok(note)
    }

    async fn release(&self) -> Result<Note, StepError> {
        self.inner.release().await
    }

    async fn withdraw(&self) -> Result<Note, StepError> {
        self.inner.withdraw().await
    }

    async fn locks(&self) -> Result<Vec<HeldLock>, StepError> {
        self.inner.locks().await
    }

    async fn grace(&self) -> Option<Grace> {
        self.inner.grace().await
    }

    async fn break_locks(&self) -> Result<Note, StepError> {
        self.inner.break_locks().await
    }

    async fn check(&self) -> Result<Note, StepError> {
        let (snapshots, inner) = tokio::join!(self.snapshots.check(), self.inner.check());
        Ok(inner?.and(snapshots?))
    }

    async fn unlinks(&self) -> Result<Note, StepError> {
        self.inner.unlinks().await
    }
}
