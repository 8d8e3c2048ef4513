//! Detects problems of a program from its record: reads in a hot loop, and a growing number of
//! values.
//!
//! Input: the boundaries and regions of one stream, in order, and the call sites of reads. Output:
//! warnings, each once ([`Event::HotReads`], [`Event::Growth`]), and the call site of the read that
//! ended a region. Both rules count boundaries, ops and values, and never look at a clock. They run
//! only while the engine is observed, and nothing depends on them.
//!
//! The log does not hold the call sites of reads, because its entries are kept small. They are in
//! [`ReadSites`](crate::engine::read_sites::ReadSites).

mod leaks;
mod read_sites;

use fuseline_fusion::{Graph, Site};

use self::leaks::LiveValueLeak;
use self::read_sites::{Load, Reads};
use super::job::Job;
use crate::engine::stream::StreamShared;
use crate::engine::value::Producer;
use crate::event::{Event, LeakSite};

/// The diagnostics of one stream.
#[derive(Default)]
pub(super) struct Diagnostics {
    /// What was sealed since the program last requested a boundary.
    load: Load,
    reads: Reads,
    growth: LiveValueLeak,
}

impl Diagnostics {
    /// A region of these ops was sealed.
    pub(super) fn sealed(&mut self, graph: &Graph) {
        self.load.add(graph);
    }

    /// A sealed region has results that are needed.
    pub(super) fn made(&mut self, job: &Job, stream: &StreamShared) {
        let replicas = stream.engine().device().replicas() as u64;
        for &(result, ref value) in &job.outputs {
            let (_, site) = Producer { region: job.info.clone(), result }.address();
            self.growth.made(value.holder(), site, replicas);
        }
        // In Strict mode each op is a region because the user wants that.
        if job.is_fused() {
            let growth = self.growth.region();
            report_leak(growth, stream);
        }
    }

    /// The program requested a boundary: by a read, whose call site is `asked`, by a flush, or by
    /// using a value on another stream.
    pub(super) fn boundary(&mut self, asked: Option<Site>, stream: &StreamShared) {
        let load = std::mem::take(&mut self.load);
        if load.is_nothing() {
            return;
        }
        let (engine, id) = (stream.engine(), stream.id());
        if let Some(site) = asked
            && let Some(ops) = self.reads.ended(&site, load)
        {
            engine.emit(|| Event::HotReads { stream: id, site, reads: read_sites::MANY, ops });
        }
        report_leak(self.growth.asked(), stream);
    }
}

fn report_leak(growth: Option<(usize, Vec<LeakSite>)>, stream: &StreamShared) {
    if let Some((more, kept)) = growth {
        let (stream_id, boundaries) = (stream.id(), leaks::BOUNDARIES);
        stream.engine().emit(|| Event::Growth { stream: stream_id, boundaries, more, kept });
    }
}
