//! Demands values, ends regions, and waits for what was recorded.

use std::sync::Arc;
use std::time::Instant;

use fuseline_fusion::Site;
use fuseline_fusion::region::Boundary;
use fuseline_record::entry::{Fence, FenceOutcome};
use fuseline_sync::fork::is_forked;

use super::{StreamShared, may_wait};
use crate::engine::Entry;
use crate::engine::value::ValueCell;
use crate::error::{Error, Result};
use crate::event::Event;

impl StreamShared {
    /// Demands a value, so that it will be computed. Does not wait.
    pub fn need(self: &Arc<Self>, value: &Arc<ValueCell>, why: Boundary) {
        if self.trace.is_some() || is_forked() {
            return;
        }
        if value.needs_boundary() {
            if why == Boundary::HostRead {
                value.set_read();
            }
            self.replay.submit(Entry::Demand(value.clone(), why), self);
        }
        self.notify();
    }

    /// As [`StreamShared::need`], for a read of the host at `site`.
    pub(crate) fn need_for_host(self: &Arc<Self>, value: &Arc<ValueCell>, site: &Site) {
        self.note_read_site(value, site);
        self.need(value, Boundary::HostRead);
    }

    fn note_read_site(&self, value: &ValueCell, site: &Site) {
        if self.engine.is_observed() && self.trace.is_none() && value.needs_boundary() {
            self.read_sites.put(value.id(), site.clone());
        }
    }

    /// As [`StreamShared::need_for_host`], for a thread that is about to wait for the value. It
    /// drives the stream itself, unless it has a deadline, because a call of the plugin may not
    /// return.
    pub(crate) fn need_now(self: &Arc<Self>, value: &Arc<ValueCell>, deadline: Option<Instant>, site: &Site) {
        if value.needs_boundary() {
            self.note_read_site(value, site);
            value.set_read();
            self.replay.submit(Entry::Demand(value.clone(), Boundary::HostRead), self);
        }
        if value.outcome().get().is_none() {
            self.run_by(deadline);
        }
    }

    /// Ends the pending region; does not wait.
    pub fn flush(self: &Arc<Self>, why: Boundary) {
        if self.trace.is_some() || is_forked() {
            return;
        }
        self.replay.submit(Entry::Flush(why), self);
        self.notify();
    }

    /// Waits until everything recorded so far has been computed.
    pub fn synchronize(self: &Arc<Self>, deadline: Option<Instant>, site: &Site) -> Result<()> {
        Error::unless_forked(site)?;
        may_wait()?;
        if let Some(trace) = &self.trace {
            return Err(trace.no_data("synchronize", site.clone()));
        }
        let start = Instant::now();
        let deadline = deadline.or_else(|| self.engine.deadline());
        let (fence, promise) = Fence::new();
        self.replay.submit(Entry::Fence(promise), self);
        self.run_by(deadline);
        let fenced = (*fence).as_ref().wait(deadline);
        let took = start.elapsed();
        match fenced {
            Some(FenceOutcome::Done) => {
                self.engine.emit(|| Event::Synchronized { stream: self.id, site: site.clone(), took });
                self.checks.at_end(self)
            }
            Some(FenceOutcome::Abandoned) => Err(Error::abandoned()),
            None => Err(Error::timeout(took, format!("stream {}", self.id), self.activity.look())),
        }
    }

    /// A fence at the current position of the stream. It is reached when everything recorded so far
    /// has been computed. Does not wait.
    pub fn place(self: &Arc<Self>, site: &Site) -> Result<Arc<Fence>> {
        Error::unless_forked(site)?;
        if let Some(trace) = &self.trace {
            return Err(trace.no_data("an event", site.clone()));
        }
        let (fence, promise) = Fence::new();
        self.replay.submit(Entry::Fence(promise), self);
        self.notify();
        Ok(fence)
    }

    /// Everything that is recorded from now on runs after another stream has reached this fence.
    /// Does not wait.
    pub fn run_after(self: &Arc<Self>, fence: Arc<Fence>, site: &Site) -> Result<()> {
        Error::unless_forked(site)?;
        if let Some(trace) = &self.trace {
            return Err(trace.no_data("an event", site.clone()));
        }
        if (*fence).as_ref().get().is_none() {
            self.replay.submit(Entry::WaitFor(fence), self);
        }
        Ok(())
    }
}
