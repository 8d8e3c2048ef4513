//! A cache of lowerings: the ops that a call was lowered to, by the call's row, types and numbers.
//!
//! A lowering broadcasts, promotes and checks types, which costs more than recording its ops. A
//! program repeats its calls. So the second call of a kind is lowered into a [`Function`], and
//! later ones only record the ops of the function.
//!
//! ```text
//! call ─► key ─┬─ first time: lowered
//!              ├─ second time: lowered on placeholders ─► Function ─► its ops are recorded
//!              └─ later: the ops of the function are recorded
//! ```
//!
//! Invariants:
//! - CALLS-1: a lowering depends on nothing but the row, the numbers, texts and element types among
//!   the arguments, and the types of tensors and results. The key consists of these.
//! - CALLS-2: the ops of a function are those of the lowering, in the same order and with the same
//!   operands. So both give the same regions, and the compile cache has one entry for them.
//!
//! Not cached: calls in Debug mode and in graphs, lowerings that use other tensors than their
//! arguments, and lowerings that check an index argument. The last would check an index tensor
//! again that was checked before. A call whose numbers always change, such as seeds, always misses.

#![allow(
    clippy::disallowed_types,
    reason = "no model checker drives this crate, and the engine's shim is not public"
)]

use std::hash::BuildHasher as _;
use std::sync::Arc;

use fuseline::fusion::TensorType;
use fuseline::{Function, Mode, Stream, Tensor};
use parking_lot::Mutex;
use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use crate::call::{Arg, Call, Result, Results, Row};

/// The largest number of functions; one more drops all others. A large model has some hundred kinds
/// of calls.
const MAX_FUNCTIONS: usize = 1_024;

/// The number of entries in the table of recent calls.
const RECENT_CALLS: usize = 4_096;

/// Words that are equal only for calls with the same lowering (CALLS-1).
type Key = SmallVec<[u64; 32]>;

#[derive(Default)]
struct LoweringCache {
    /// `None` for a lowering that cannot be cached.
    functions: FxHashMap<Key, Option<Arc<Function>>>,
    /// Hashes of the keys of recent calls; a direct-mapped table.
    recent: Vec<u64>,
}

/// The outcome of a lookup.
enum Lookup {
    Hit(Arc<Function>),
    /// There is no function, and the call was made recently.
    Repeated,
    /// The call was not made recently, or its lowering cannot be cached.
    Miss,
}

static CACHE: Mutex<Option<LoweringCache>> = Mutex::new(None);

/// Records a call, by a cached function if there is one.
pub(crate) fn record(op: usize, row: &Row, call: &Call<'_>) -> Result<Results> {
    if call.stream.mode() == Mode::Debug {
        return (row.lower)(call);
    }
    let Some(key) = key_of(op, call) else { return (row.lower)(call) };
    let function = match look_up(&key) {
        Lookup::Miss => return (row.lower)(call),
        Lookup::Hit(function) => function,
        Lookup::Repeated => {
            let function = trace_lowering(row, call).map(Arc::new);
            if let Some(mut cache) = CACHE.try_lock() {
                cache.get_or_insert_default().insert(key, function.clone());
            }
            match function {
                Some(function) => function,
                None => return (row.lower)(call),
            }
        }
    };
    Ok(function.write_out(call.stream, &tensors(call.args))?.into_iter().collect())
}

/// Looks up a call. It is a miss while another thread uses the cache.
fn look_up(key: &Key) -> Lookup {
    let Some(mut cache) = CACHE.try_lock() else { return Lookup::Miss };
    let cache = cache.get_or_insert_default();
    match cache.functions.get(key) {
        Some(Some(function)) => return Lookup::Hit(function.clone()),
        Some(None) => return Lookup::Miss,
        None => {}
    }
    let hash = FxBuildHasher.hash_one(key);
    cache.recent.resize(RECENT_CALLS, 0);
    let slot = &mut cache.recent[hash as usize % RECENT_CALLS];
    match std::mem::replace(slot, hash) == hash {
        true => Lookup::Repeated,
        false => Lookup::Miss,
    }
}

impl LoweringCache {
    fn insert(&mut self, key: Key, function: Option<Arc<Function>>) {
        if self.functions.len() >= MAX_FUNCTIONS {
            self.functions.clear();
        }
        self.functions.insert(key, function);
    }
}

/// Lowers a call on placeholders. `None` if the lowering cannot be cached.
fn trace_lowering(row: &Row, call: &Call<'_>) -> Option<Function> {
    let trace = call.stream.begin_inline_function("torch.lowering");
    let stream: Stream = trace.stream();
    let params: Vec<Tensor> =
        tensors(call.args).into_iter().map(|tensor| trace.param(tensor.ty()).ok()).collect::<Option<_>>()?;
    let mut next = params.iter();
    let args = call.args.iter().map(|arg| match arg {
        Arg::Tensor(_) => Arg::Tensor(next.next().expect("bug: an argument has no placeholder")),
        Arg::Tensors(list) => {
            let placeholders = list
                .iter()
                .map(|tensor| tensor.map(|_| next.next().expect("bug: an argument has no placeholder")));
            Arg::Tensors(placeholders.collect())
        }
        other => other.clone(),
    });
    let args: SmallVec<[Arg<'_>; 8]> = args.collect();
    let traced = Call::new(&stream, &args, call.outs);
    let results = (row.lower)(&traced).ok()?;
    if traced.checks_arguments() {
        return None;
    }
    let function = trace.end(&results).ok()?;
    function.captures().iter().all(Tensor::is_number).then_some(function)
}

/// The tensors among arguments, in order.
fn tensors<'a>(args: &[Arg<'a>]) -> SmallVec<[&'a Tensor; 8]> {
    let mut found = SmallVec::new();
    for arg in args {
        match arg {
            Arg::Tensor(tensor) => found.push(*tensor),
            Arg::Tensors(list) => found.extend(list.iter().flatten().copied()),
            _ => {}
        }
    }
    found
}

/// The key of a call; `None` if it draws random numbers of a graph. Each argument is a tag and as
/// many words as the tag and these words say, so that different calls have different keys.
fn key_of(op: usize, call: &Call<'_>) -> Option<Key> {
    let mut key = Key::new();
    key.extend([op as u64, call.outs.len() as u64]);
    call.outs.iter().for_each(|ty| add_type(ty, &mut key));
    for arg in call.args {
        match arg {
            Arg::None => key.push(0),
            Arg::Tensor(tensor) => {
                key.push(1);
                add_type(tensor.ty(), &mut key);
            }
            Arg::Tensors(list) => {
                key.extend([2, list.len() as u64]);
                for tensor in list {
                    match tensor {
                        Some(tensor) => add_type(tensor.ty(), &mut key),
                        None => key.push(0),
                    }
                }
            }
            Arg::Int(value) => key.extend([3, *value as u64]),
            Arg::Float(value) => key.extend([4, value.to_bits()]),
            Arg::Bool(value) => key.extend([5, u64::from(*value)]),
            Arg::Ints(list) => {
                key.extend([6, list.len() as u64]);
                key.extend(list.iter().map(|&value| value as u64));
            }
            Arg::Floats(list) => {
                key.extend([7, list.len() as u64]);
                key.extend(list.iter().map(|value| value.to_bits()));
            }
            Arg::Text(text) => {
                key.extend([8, text.len() as u64]);
                key.extend(text.bytes().map(u64::from));
            }
            Arg::DType(dtype) => key.extend([9, u64::from(dtype.code())]),
            Arg::Complex(real, imag) => key.extend([10, real.to_bits(), imag.to_bits()]),
            Arg::Draw => return None,
        }
    }
    Some(key)
}

/// Adds a type: a word for element type and rank, then the sizes. The first word is not 0, which
/// stands for a missing tensor in a list.
fn add_type(ty: &TensorType, key: &mut Key) {
    key.push(1 + (u64::from(ty.dtype().code()) << 8 | ty.rank() as u64));
    key.extend(ty.sizes().iter().map(|&size| size as u64));
}
