//! Takes a region from the log to its results.
//!
//! The regions are chains of `add` and `multiply` on 16 `f32`, with two inputs and one needed
//! result. So the engine's work is measured, and next to none of the device's.
//!
//! | stage | from | to |
//! |---|---|---|
//! | [`Stage::Record`] | calls of public methods, results but the last dropped | entries in the log |
//! | [`Stage::TakeIn`] | entries | pending ops of the region builder |
//! | [`Stage::Seal`] | pending ops | a region |
//! | [`Stage::Canonicalise`] | its graph | canonical bytes |
//! | [`Stage::Hash`] | canonical bytes | the key |
//! | [`Stage::Job`] | a region | a job: canonical bytes, key, what is needed |
//! | [`Stage::LookUp`] | key and bytes | the executable, from the memory cache |
//! | [`Stage::Bind`] | inputs | arguments, and which may be donated |
//! | [`Stage::Execute`] | executable and arguments | buffers, including the call of the device |
//! | [`Stage::Fulfil`] | buffers | outcomes of values; waiters are notified |
//! | [`Stage::Drive`] | entries | outcomes: everything after `record`, as the driver does it |

use std::hint::black_box;
use std::time::{Duration, Instant};

use fuseline::fusion::canon::{CanonRegion, EnvFingerprint};
use fuseline::fusion::ir::Graph;
use fuseline::stages::{BenchDriver, BoundRegion, Executed, Sealed, Work};
use fuseline::{Engine, Stream, Tensor};

/// Sizes of the regions, in ops.
pub const SIZES: [usize; 4] = [1, 10, 100, 1_000];

/// The maximum number of entries in the log, out of the 8,192 that it holds.
const ENTRIES: usize = 6_000;

/// A stage; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub enum Stage {
    Record,
    TakeIn,
    Seal,
    Canonicalise,
    Hash,
    Job,
    LookUp,
    Bind,
    Execute,
    Fulfil,
    Drive,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 11] = [
        Stage::Record,
        Stage::TakeIn,
        Stage::Seal,
        Stage::Canonicalise,
        Stage::Hash,
        Stage::Job,
        Stage::LookUp,
        Stage::Bind,
        Stage::Execute,
        Stage::Fulfil,
        Stage::Drive,
    ];

    /// As in the names of figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Record => "record",
            Stage::TakeIn => "take in",
            Stage::Seal => "seal",
            Stage::Canonicalise => "canonicalise",
            Stage::Hash => "hash",
            Stage::Job => "job",
            Stage::LookUp => "look up",
            Stage::Bind => "bind",
            Stage::Execute => "execute",
            Stage::Fulfil => "fulfil",
            Stage::Drive => "drive",
        }
    }
}

/// Regions between two stages.
#[derive(Debug, Default)]
pub struct Batch {
    sealed: Vec<Sealed>,
    graphs: Vec<(Graph, Box<[bool]>)>,
    regions: Vec<CanonRegion>,
    works: Vec<Work>,
    executed: Vec<Executed>,
}

/// Regions of one size.
#[derive(Debug)]
pub struct Rig {
    hand: BenchDriver,
    inputs: [Tensor; 2],
    ops: usize,
    regions: usize,
    /// The needed results, as long as they are needed.
    results: Vec<Tensor>,
    environment: EnvFingerprint,
    _engine: Engine,
}

impl Rig {
    /// Regions of this many ops, one of which the engine has compiled.
    #[must_use]
    pub fn new(engine: &Engine, ops: usize) -> Rig {
        let regions = batch_size(ops);
        let hand = BenchDriver::new(engine.new_stream(), regions);
        let input = |stream: &Stream| stream.tensor(&[1.0f32; 16], &[16]).expect("it fits");
        let inputs = [input(hand.stream()), input(hand.stream())];
        let environment = EnvFingerprint::of(b"benchmark");
        let mut rig =
            Rig { hand, inputs, ops, regions, results: Vec::new(), environment, _engine: engine.clone() };
        // Compiled by driving the stream here, so that no other thread launches and the heap is the
        // same in each run.
        rig.results.push(chain(&rig.inputs, ops));
        rig.hand.end_region();
        rig.hand.drive();
        rig.clear();
        // Fills the caches, as in a steady loop.
        for _ in 0..2 {
            rig.pass();
        }
        rig
    }

    /// The number of regions in a batch.
    #[must_use]
    pub fn regions(&self) -> usize {
        self.regions
    }

    /// Takes a batch through all stages and returns the duration of each.
    pub fn pass(&mut self) -> [Duration; Stage::ALL.len()] {
        let mut batch = Batch::default();
        Stage::ALL.map(|stage| match stage {
            Stage::Execute => {
                let bound: Vec<BoundRegion<'_>> = batch.works.iter().map(Work::bind).collect();
                let start = Instant::now();
                let execute = |(work, bound)| self.hand.execute(work, bound);
                batch.executed.extend(batch.works.iter().zip(bound).map(execute));
                start.elapsed()
            }
            Stage::Drive => {
                self.clear();
                self.run(Stage::Record, &mut batch);
                let start = Instant::now();
                self.run(Stage::Drive, &mut batch);
                let took = start.elapsed();
                self.clear();
                took
            }
            stage => {
                self.before(stage, &mut batch);
                let start = Instant::now();
                self.run(stage, &mut batch);
                start.elapsed()
            }
        })
    }

    /// Makes a batch with the stages before this one.
    #[must_use]
    pub fn prepare(&mut self, stage: Stage) -> Batch {
        let mut batch = Batch::default();
        let before = Stage::ALL.into_iter().take_while(|&earlier| earlier != stage);
        for earlier in before.filter(|&earlier| earlier != Stage::Execute && stage != Stage::Drive) {
            self.before(earlier, &mut batch);
            self.run(earlier, &mut batch);
        }
        if stage == Stage::Drive {
            self.run(Stage::Record, &mut batch);
        }
        self.before(stage, &mut batch);
        batch
    }

    /// Prepares what a stage needs and no earlier stage leaves.
    fn before(&self, stage: Stage, batch: &mut Batch) {
        let regions = self.regions;
        match stage {
            Stage::Seal => batch.sealed.reserve(regions),
            Stage::Canonicalise => {
                let parts = |region: &Sealed| (region.graph().clone(), region.lifted());
                batch.graphs = batch.sealed.iter().map(parts).collect();
                batch.regions.reserve(regions);
            }
            Stage::Job => batch.works.reserve(regions),
            _ => {}
        }
    }

    /// Takes a batch through a stage other than [`Stage::Execute`]. This is what is measured.
    pub fn run(&mut self, stage: Stage, batch: &mut Batch) {
        match stage {
            Stage::Record => {
                for _ in 0..self.regions {
                    self.results.push(chain(&self.inputs, self.ops));
                    self.hand.end_region();
                }
            }
            Stage::TakeIn => (0..self.regions).for_each(|region| self.hand.take_in(region)),
            Stage::Seal => batch.sealed.extend((0..self.regions).map(|region| self.hand.seal(region))),
            Stage::Canonicalise => {
                let canonicalise = |(graph, lifted)| CanonRegion::new(graph, lifted);
                batch.regions.extend(batch.graphs.drain(..).map(canonicalise));
            }
            Stage::Hash => {
                for region in &batch.regions {
                    black_box(region.key(&self.environment));
                }
            }
            Stage::Job => batch.works.extend(batch.sealed.drain(..).map(|region| self.hand.job(region))),
            Stage::LookUp => batch.works.iter_mut().for_each(|work| self.hand.look_up(work)),
            Stage::Bind => batch.works.iter().for_each(|work| drop(black_box(work.bind()))),
            Stage::Execute => unreachable!("bug: executions borrow from what they are bound to"),
            Stage::Fulfil => {
                let works = batch.works.drain(..).zip(batch.executed.drain(..));
                works.for_each(|(work, executed)| self.hand.fulfil(work, executed));
            }
            Stage::Drive => self.hand.drive(),
        }
    }

    /// Drops the results of a batch once they are ready.
    fn clear(&mut self) {
        for result in &self.results {
            result.wait().expect("it runs");
        }
        self.results.clear();
        self.hand.discard();
    }
}

/// The number of regions of this many ops in a batch.
#[must_use]
pub fn batch_size(ops: usize) -> usize {
    (ENTRIES / (2 * ops + 1)).clamp(1, 64)
}

/// A chain of this many ops.
fn chain(inputs: &[Tensor; 2], ops: usize) -> Tensor {
    let [x, y] = inputs;
    let op = |z: &Tensor, i: usize| if i.is_multiple_of(2) { z.mul(y) } else { z.add(y) };
    let first = op(x, 0).expect("it fits");
    (1..ops).fold(first, |z, i| op(&z, i).expect("it fits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_compute_what_the_engine_computes() {
        let engine = crate::reference();
        for ops in [1, 10] {
            let mut rig = Rig::new(&engine, ops);
            let inputs = [0, 1].map(|_| engine.tensor(&[1.0f32; 16], &[16]).expect("it fits"));
            let wanted = chain(&inputs, ops).to_vec::<f32>().expect("it runs");
            let mut batch = Batch::default();
            for stage in Stage::ALL {
                match stage {
                    Stage::Execute => {
                        let bound: Vec<BoundRegion<'_>> = batch.works.iter().map(Work::bind).collect();
                        let execute = |(work, bound)| rig.hand.execute(work, bound);
                        batch.executed = batch.works.iter().zip(bound).map(execute).collect();
                    }
                    Stage::Drive => {}
                    stage => {
                        rig.before(stage, &mut batch);
                        rig.run(stage, &mut batch);
                    }
                }
            }
            assert_eq!(rig.results.len(), batch_size(ops));
            for result in &rig.results {
                assert_eq!(result.to_vec::<f32>().expect("it runs"), wanted, "{ops} ops");
            }
        }
    }

    #[test]
    fn a_batch_is_prepared_up_to_each_stage() {
        let engine = crate::reference();
        for stage in Stage::ALL.into_iter().filter(|&stage| stage != Stage::Execute && stage != Stage::Fulfil)
        {
            let mut rig = Rig::new(&engine, 3);
            let mut batch = rig.prepare(stage);
            rig.run(stage, &mut batch);
            let sealed = batch.sealed.len() + batch.works.len();
            let is_sealed = !matches!(stage, Stage::Record | Stage::TakeIn | Stage::Drive);
            assert_eq!(sealed, if is_sealed { rig.regions() } else { 0 }, "{stage:?}");
        }
    }
}
