//! Single stages of recording and execution, for `benches/micro`.
//!
//! Hidden, and present only with the feature `stages`: this is no interface. A [`BenchDriver`] owns
//! a stream on which no thread of the engine works, because it holds the stream's actor and never
//! releases it. Recorded ops stay in the log until the bench driver takes them out. It passes them
//! from stage to stage by the functions that the driver calls.

use std::fmt;
use std::sync::Arc;

use fuseline_cache::Hit;
use fuseline_fusion::op::Effect;
use fuseline_fusion::region::{Boundary, Operands, Results, TraceOp};
use fuseline_fusion::{RegionSeq, Signature, Site};
use fuseline_record::memo;

use super::job::{BoundArguments, Job};
use super::{Drive, Driver, EngineRegion};
use crate::device::{self, Executable};
use crate::engine::Entry;
use crate::engine::stream::{StreamShared, TensorHandle, TensorHandles};
use crate::engine::value::ValuePromise;
use crate::error::Result;

/// A stream whose driver stages are called one at a time.
pub struct BenchDriver {
    stream: Arc<StreamShared>,
    /// Each takes in its own regions, so that many can be between two stages.
    drivers: Vec<Driver>,
}

/// A call whose result types are known.
#[derive(Clone, Debug)]
pub struct InferredCall(memo::InferredCall);

/// The handles on an op's results, and the promises behind them.
pub struct Handles {
    promises: Results<ValuePromise>,
    /// The handles.
    pub tensors: TensorHandles,
}

/// A sealed region.
pub struct Sealed(EngineRegion);

/// A region with its key, and with its executable after [`BenchDriver::look_up`].
pub struct Work {
    job: Box<Job>,
    hit: Option<Hit<Executable>>,
}

/// The arguments of an execution.
pub struct BoundRegion<'a>(BoundArguments<'a>);

/// A started execution.
pub struct Executed {
    executed: device::Executed,
    kept: smallvec::SmallVec<[i64; 16]>,
}

impl BenchDriver {
    /// Takes over a new stream, with this number of drivers.
    ///
    /// # Panics
    /// When a thread works on the stream.
    #[must_use]
    pub fn new(stream: Arc<StreamShared>, drivers: usize) -> BenchDriver {
        assert!(stream.hold(), "a thread works on the stream");
        let engine = stream.engine();
        let drivers = (0..drivers).map(|_| Driver::of(engine)).collect();
        BenchDriver { stream, drivers }
    }

    fn shared(&self) -> &Arc<StreamShared> {
        &self.stream
    }

    // ----- recording -----

    /// Empties the log and returns the signatures of its ops.
    pub fn discard(&self) -> Vec<Arc<Signature>> {
        let mut reader = self.shared().log().read();
        let mut signatures = Vec::new();
        while let Some(entry) = reader.pop() {
            if let Entry::Op(op) = entry {
                signatures.push(op.signature);
            }
        }
        signatures
    }

    /// Returns the signature of a call that this thread has made before, as a steady loop finds it.
    ///
    /// # Errors
    /// When the op table refuses the call.
    pub fn rule(&self, call: &Signature, operands: &[&TensorHandle]) -> Result<InferredCall> {
        let (op, attrs, bodies) = (call.op(), call.attrs(), call.bodies());
        match memo::by_tokens(op, attrs, bodies, operands) {
            Some(known) => Ok(InferredCall(known)),
            None => memo::by_types(op, attrs, bodies, operands)
                .map(InferredCall)
                .map_err(|error| crate::error::Error::op(error, Site::Unknown)),
        }
    }

    /// Creates handles on the results of a call.
    #[must_use]
    pub fn handles(&self, call: &InferredCall) -> Handles {
        let mut tensors = TensorHandles::new();
        let promises = self.shared().promise(&call.0, &mut tensors);
        Handles { promises, tensors }
    }

    /// Appends a call to the log.
    ///
    /// # Errors
    /// When an operand belongs to another engine.
    pub fn record(
        &self,
        call: InferredCall,
        operands: &[&TensorHandle],
        handles: Handles,
    ) -> Result<TensorHandles> {
        let signature = call.0.signature;
        let stream = self.shared();
        let site = Site::Rust(std::panic::Location::caller());
        let mut inputs = Operands::new();
        let _ = stream.take_operands(operands, &mut inputs, &site)?;
        let operands = inputs;
        let Handles { promises: results, tensors } = handles;
        let mode = stream.mode();
        stream.push(Entry::Op(TraceOp { signature, operands, results, effect: Effect::Pure, mode, site }));
        Ok(tensors)
    }

    // ----- regions -----

    /// Ends the region that is being recorded.
    pub fn end_region(&self) {
        self.shared().push(Entry::Flush(Boundary::Flush));
    }

    /// Moves the next recorded region from the log into this driver.
    pub fn take_in(&mut self, driver: usize) {
        let stream = &self.stream;
        let mut reader = stream.log().read();
        let driver = &mut self.drivers[driver];
        while let Some(entry) = reader.pop() {
            if matches!(entry, Entry::Flush(_)) {
                break;
            }
            driver.take_in(entry, stream);
        }
    }

    /// Seals what the driver has taken in.
    ///
    /// # Panics
    /// When that is not one region: a budget cut it.
    pub fn seal(&mut self, driver: usize) -> Sealed {
        let driver = &mut self.drivers[driver];
        driver.builder.seal(Boundary::Flush, &mut driver.sealed);
        let region = driver.sealed.pop().expect("a region was taken in");
        assert!(driver.sealed.is_empty(), "the region is larger than the budgets");
        Sealed(region)
    }

    /// Makes a job of a region: its canonical form, key and bindings.
    #[must_use]
    pub fn job(&self, sealed: Sealed) -> Work {
        let job = Job::new(sealed.0, None, RegionSeq(0), self.shared());
        Work { job, hit: None }
    }

    /// Looks up the executable.
    ///
    /// # Panics
    /// When there is none.
    pub fn look_up(&self, work: &mut Work) {
        work.job.prepare(self.shared());
        work.hit = work.job.take_hit();
        assert!(work.hit.is_some(), "the region was not compiled before");
    }

    /// Starts the execution.
    ///
    /// # Panics
    /// When it fails.
    #[must_use]
    pub fn execute(&self, work: &Work, bound: BoundRegion<'_>) -> Executed {
        let BoundArguments { args, scalars, kept } = bound.0;
        let device = self.shared().engine().device();
        let executed = device.execute(work.executable(), &args, scalars.into_iter(), &kept);
        Executed { executed: executed.expect("it runs"), kept }
    }

    /// Hands out the results.
    ///
    /// # Panics
    /// When the executable was not looked up.
    pub fn fulfil(&self, mut work: Work, executed: Executed) {
        let hit = work.hit.take().expect("it was looked up");
        let step = work.job.fulfil(&hit.artifact, executed.executed, &executed.kept, None, self.shared());
        drop(step);
    }

    /// Takes everything in the log through all stages, as a driving thread does.
    pub fn drive(&mut self) {
        let stream = &self.stream;
        let Some(driver) = self.drivers.first_mut() else { return };
        driver.run(false, stream);
        // The in-flight limit is reached. The notification goes to the stream, on which nobody
        // works.
        while !driver.queue.is_empty() {
            std::thread::yield_now();
            driver.run(false, stream);
        }
    }
}

impl Sealed {
    /// The ops, for stages that depend on nothing else.
    #[must_use]
    pub fn graph(&self) -> &fuseline_fusion::ir::Graph {
        &self.0.graph
    }

    /// Which inputs are lifted scalars.
    #[must_use]
    pub fn lifted(&self) -> Box<[bool]> {
        self.0.inputs.iter().map(|input| input.lifted).collect()
    }
}

impl Work {
    fn executable(&self) -> &Executable {
        &self.hit.as_ref().expect("it was looked up").artifact
    }

    /// Collects the arguments of the executable.
    ///
    /// # Panics
    /// When an input has no data.
    #[must_use]
    pub fn bind(&self) -> BoundRegion<'_> {
        match self.job.bind(self.executable()) {
            Ok(bound) => BoundRegion(bound),
            Err(error) => panic!("{}", error.message),
        }
    }
}

macro_rules! opaque {
    ($($name:ident $(<$life:lifetime>)?),*) => {
        $(impl fmt::Debug for $name $(<$life>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        })*
    };
}

opaque!(BenchDriver, Handles, Sealed, Work, BoundRegion<'_>, Executed);
