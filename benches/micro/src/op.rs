//! Recording one op.
//!
//! | stage | from | to |
//! |---|---|---|
//! | [`Stage::Infer`] | op, attributes, operand types | result types, by the op table: a thread's first call |
//! | [`Stage::Rule`] | the same | the same, from the memo: every later call |
//! | [`Stage::Handle`] | result types | handles, and the promises behind them |
//! | [`Stage::Record`] | all of that | an entry in the stream's log |
//! | [`Stage::Drop`] | a handle | the release in the log |
//! | [`Stage::Call`] | a call of the public method | handles: rule, handle and record, and what the method adds |
//! | [`Stage::Replay`] | a call of the public method, in a loop that has done the same before | handles that have been dropped again |
//!
//! No engine thread works on the log meanwhile. Waking one, which happens once in 1,024 entries, is
//! included in the figures of threads and regions.

use std::cell::{OnceCell, RefCell};
use std::hint::black_box;
use std::sync::Arc;

use fuseline::fusion::Signature;
use fuseline::stages::{BenchDriver, Handles, InferredCall, tensor};
use fuseline::{Body, DType, Engine, OpCode, Stream, Tensor, TensorType};

/// Calls in a batch: few enough that the log never fills up.
pub const BATCH: usize = 100;

/// A kind of op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// `add` of two matrices.
    Elementwise,
    /// `broadcast_in_dim` of a row to a matrix.
    Broadcast,
    /// `reduce` of a matrix over its rows, with a body.
    Reduce,
    /// `dot_general` of two matrices.
    Dot,
    /// `transpose` of a matrix.
    View,
    /// `top_k` of a matrix: two results.
    MultiOutput,
    /// `dynamic_update_slice` of a matrix, whose handle the result replaces.
    Update,
}

impl Class {
    /// All of them.
    pub const ALL: [Class; 7] = [
        Class::Elementwise,
        Class::Broadcast,
        Class::Reduce,
        Class::Dot,
        Class::View,
        Class::MultiOutput,
        Class::Update,
    ];

    /// As in the names of figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Class::Elementwise => "elementwise",
            Class::Broadcast => "broadcast",
            Class::Reduce => "reduce",
            Class::Dot => "dot",
            Class::View => "view",
            Class::MultiOutput => "multi-output",
            Class::Update => "update",
        }
    }
}

/// A part of recording; see the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the module's table says what they are")]
pub enum Stage {
    Infer,
    Rule,
    Handle,
    Record,
    Drop,
    Call,
    Replay,
}

impl Stage {
    /// All of them.
    pub const ALL: [Stage; 7] =
        [Stage::Infer, Stage::Rule, Stage::Handle, Stage::Record, Stage::Drop, Stage::Call, Stage::Replay];

    /// As in the names of figures.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stage::Infer => "infer",
            Stage::Rule => "rule",
            Stage::Handle => "handle",
            Stage::Record => "record",
            Stage::Drop => "drop",
            Stage::Call => "call",
            Stage::Replay => "replay",
        }
    }
}

/// What a call returns.
#[derive(Debug)]
pub enum Called {
    /// Nothing: the call replaced a handle.
    None,
    /// One result.
    One(Tensor),
    /// Two results.
    Two(Tensor, Tensor),
}

/// One op and its operands.
#[derive(Debug)]
struct Op {
    class: Class,
    operands: Vec<Tensor>,
    /// The handle that an update replaces.
    state: RefCell<Tensor>,
    body: Arc<Body>,
}

/// One op on a stream that no thread drives, and on another one.
#[derive(Debug)]
pub struct Rig {
    hand: BenchDriver,
    op: Op,
    call: Arc<Signature>,
    steady: OnceCell<Steady>,
    engine: Engine,
}

/// A loop that records a batch and flushes, after several rounds.
#[derive(Debug)]
struct Steady {
    op: Op,
    stream: Stream,
}

/// A batch that is ready for a stage, as the earlier stages left it.
#[derive(Debug, Default)]
pub struct Batch {
    inferred: Vec<Arc<Signature>>,
    known: Vec<InferredCall>,
    handles: Vec<Handles>,
    called: Vec<Called>,
}

impl Rig {
    /// Everything that a call needs, made in advance, so that all caches are filled as in a steady
    /// loop.
    #[must_use]
    pub fn new(class: Class) -> Rig {
        let engine = crate::reference();
        let hand = BenchDriver::new(engine.new_stream(), 0);
        let op = Op::new(class, hand.stream());
        drop(op.call());
        let mut calls = hand.discard();
        let call = calls.pop().expect("a call was recorded");
        assert!(calls.is_empty(), "{}: one call records one op", class.name());
        Rig { hand, op, call, steady: OnceCell::new(), engine }
    }

    fn steady(&self) -> &Steady {
        self.steady.get_or_init(|| {
            let stream = self.engine.new_stream();
            let steady = Steady { op: Op::new(self.op.class, &stream), stream };
            for _ in 0..4 {
                steady.finish(steady.round());
            }
            steady
        })
    }
}

impl Steady {
    /// Records a batch. Returns its last result, which keeps the batch needed.
    fn round(&self) -> Called {
        let mut last = Called::None;
        for _ in 0..BATCH {
            last = black_box(self.op.call());
        }
        last
    }

    /// Ends the round.
    fn finish(&self, last: Called) {
        self.stream.flush();
        drop(last);
        self.stream.synchronize().expect("nobody drives this thread");
    }
}

impl Op {
    fn new(class: Class, stream: &Stream) -> Op {
        let matrix = || stream.tensor(&[1.0f32; 64], &[8, 8]).expect("it fits");
        let zero = || stream.scalar(0i32);
        let operands = match class {
            Class::Elementwise | Class::Dot => vec![matrix(), matrix()],
            Class::Broadcast => vec![stream.tensor(&[1.0f32; 8], &[8]).expect("it fits")],
            Class::Reduce => vec![matrix(), stream.scalar(0.0f32)],
            Class::View | Class::MultiOutput => vec![matrix()],
            Class::Update => {
                vec![matrix(), stream.tensor(&[1.0f32; 8], &[1, 8]).expect("it fits"), zero(), zero()]
            }
        };
        let body = Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).expect("f32 can be added");
        let state = RefCell::new(operands[0].clone());
        Op { class, operands, state, body: Arc::new(body) }
    }

    fn call(&self) -> Called {
        let x = &self.operands[0];
        let one = |result: fuseline::Result<Tensor>| Called::One(result.expect("it fits"));
        match self.class {
            Class::Elementwise => one(x.add(&self.operands[1])),
            Class::Broadcast => one(x.broadcast_in_dim(&[8, 8], &[1])),
            Class::Reduce => one(x.reduce(&[0], &self.operands[1], self.body.clone())),
            Class::Dot => one(x.matmul(&self.operands[1])),
            Class::View => one(x.transpose(&[1, 0])),
            Class::MultiOutput => {
                let (values, places) = x.topk(2, 1).expect("it fits");
                Called::Two(values, places)
            }
            Class::Update => {
                let mut state = self.state.borrow_mut();
                let [_, update, row, column] = &self.operands[..] else { unreachable!("bug: four operands") };
                *state = state.dynamic_update_slice(update, &[row, column]).expect("it fits");
                Called::None
            }
        }
    }
}

impl Rig {
    /// Makes a batch with the stages before this one.
    #[must_use]
    pub fn prepare(&self, stage: Stage) -> Batch {
        self.hand.discard();
        let mut batch = Batch {
            inferred: Vec::with_capacity(BATCH),
            known: Vec::with_capacity(BATCH),
            handles: Vec::with_capacity(BATCH),
            called: Vec::with_capacity(BATCH),
        };
        match stage {
            Stage::Infer | Stage::Rule | Stage::Call => {}
            Stage::Replay => {
                let steady = self.steady();
                // The previous measurement is a round too.
                steady.finish(Called::None);
                steady.finish(steady.round());
            }
            Stage::Handle => self.run(Stage::Rule, &mut batch),
            Stage::Record => {
                self.run(Stage::Rule, &mut batch);
                self.run(Stage::Handle, &mut batch);
            }
            Stage::Drop => {
                // Made by the stages, since an update's call leaves nothing to drop.
                let mut made = self.prepare(Stage::Record);
                self.run(Stage::Record, &mut made);
                batch.called = made.called;
            }
        }
        batch
    }

    /// Takes a batch through a stage. This is what is measured.
    pub fn run(&self, stage: Stage, batch: &mut Batch) {
        match stage {
            Stage::Infer => {
                for _ in 0..BATCH {
                    let call = black_box(&self.call);
                    let made =
                        Signature::infer(call.op(), call.attrs().clone(), call.bodies(), call.operands());
                    batch.inferred.push(Arc::new(made.expect("it was before")));
                }
            }
            Stage::Rule => {
                let operands: Vec<&Tensor> = self.op.operands.iter().collect();
                for _ in 0..BATCH {
                    let known = self.hand.rule(black_box(&self.call), black_box(&operands));
                    batch.known.push(known.expect("it was before"));
                }
            }
            Stage::Handle => {
                for known in &batch.known {
                    batch.handles.push(self.hand.handles(black_box(known)));
                }
            }
            Stage::Record => {
                let operands: Vec<&Tensor> = self.op.operands.iter().collect();
                for (known, handles) in batch.known.drain(..).zip(batch.handles.drain(..)) {
                    let made = self.hand.record(known, &operands, handles).expect("same engine");
                    let mut made = made.into_iter().map(tensor);
                    batch.called.push(match (made.next(), made.next()) {
                        (Some(one), Some(two)) => Called::Two(one, two),
                        (Some(one), None) => Called::One(one),
                        _ => Called::None,
                    });
                }
            }
            Stage::Drop => batch.called.clear(),
            Stage::Call => {
                for _ in 0..BATCH {
                    batch.called.push(black_box(self.op.call()));
                }
            }
            Stage::Replay => batch.called.push(self.steady().round()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each stage leaves what the next one needs, in the expected numbers.
    #[test]
    fn every_class_goes_through_every_stage() {
        for class in Class::ALL {
            let rig = Rig::new(class);
            for stage in Stage::ALL {
                let mut batch = rig.prepare(stage);
                rig.run(stage, &mut batch);
                let made =
                    [batch.inferred.len() + batch.known.len(), batch.handles.len(), batch.called.len()];
                let wanted = match stage {
                    Stage::Infer | Stage::Rule => [BATCH, 0, 0],
                    // The signatures of the handles still have to be recorded.
                    Stage::Handle => [BATCH, BATCH, 0],
                    Stage::Record | Stage::Call => [0, 0, BATCH],
                    Stage::Drop => [0, 0, 0],
                    Stage::Replay => [0, 0, 1],
                };
                assert_eq!(made, wanted, "{class:?} {stage:?}");
            }
        }
    }

    /// The stage `replay` measures replayed calls.
    #[test]
    fn every_class_is_replayed() {
        for class in Class::ALL {
            let rig = Rig::new(class);
            let mut batch = rig.prepare(Stage::Replay);
            let before = rig.engine.counters().replayed;
            rig.run(Stage::Replay, &mut batch);
            rig.steady().finish(batch.called.pop().unwrap_or(Called::None));
            assert_eq!(rig.engine.counters().replayed - before, BATCH as u64, "{class:?}");
        }
    }

    /// A call split into its stages leaves the same entries in the log as the method.
    #[test]
    fn stages_record_what_the_method_records() {
        for class in Class::ALL {
            let rig = Rig::new(class);
            rig.run(Stage::Record, &mut rig.prepare(Stage::Record));
            let by_stages = rig.hand.discard();
            rig.run(Stage::Call, &mut rig.prepare(Stage::Call));
            let by_calls = rig.hand.discard();
            assert_eq!(by_stages.len(), BATCH);
            assert!(
                by_stages.iter().zip(&by_calls).all(|(one, other)| one.encoded() == other.encoded()),
                "{class:?}"
            );
        }
    }
}
