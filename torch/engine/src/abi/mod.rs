//! The C boundary to the shim (`torch/csrc/engine.h`): plain structs and functions. Both sides are
//! built and shipped together.
//!
//! The safety of every function here rests on these obligations of the shim:
//! - Pointers are what the header says, for the length of the call. An empty list may have a null
//!   pointer; nothing else is null.
//! - Objects that are passed for a later call may be used by any thread.
//! - A value is two words in the shim's memory, which this side fills. It may be moved. It is used
//!   only until it is released, and is released once. A place for a value holds none.
//!
//! Every function returns a [`Status`]; [`flt_message`] returns the error message on the same
//! thread. Panics do not cross the boundary (TORCH-2).

#![allow(unsafe_code, unreachable_pub, reason = "a border to C++, which sees what Rust does not")]
#![allow(clippy::not_unsafe_ptr_arg_deref, reason = "the callers are in C++, and owe what the module says")]

mod custom;
mod event;
mod replica;
mod report;
mod site;

use std::cell::RefCell;
use std::ffi::c_void;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::LazyLock;
use std::{ptr, slice};

use fuseline::fusion::limits::MAX_RANK;
use fuseline::fusion::{DType, Literal, Shape, TensorType};
use fuseline::{Mode, Promised, Stage, Tensor};
use smallvec::SmallVec;

use crate::call::{Arg, Call, Fault, Result, Results, Row, unsupported};
use crate::device;
use crate::graph;
use crate::lowering_cache;
use crate::ops::{self, cast};
use crate::quick;
use crate::view::{self, View};

/// The outcome of a call.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The call succeeded.
    Ok = 0,
    /// The engine refused it, or the device failed.
    Failed = 1,
    /// There is no lowering for these arguments.
    Unsupported = 2,
    /// PyTorch reports an error for these arguments.
    Wrong = 3,
    /// Like `Failed`, because of an index or label out of range for which the CPU raises an
    /// `IndexError`.
    OutOfRange = 4,
}

/// Element type and sizes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FltType {
    /// [`DType::code`].
    pub dtype: u32,
    /// Number of sizes.
    pub rank: u32,
    /// Sizes, outermost first.
    pub dims: *const i64,
}

/// An argument: the tag of an [`Arg`] variant, a count, and the value or its address.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FltArg {
    tag: u32,
    count: u32,
    /// A number, or the bits of one, or an address.
    payload: u64,
}

impl FltArg {
    fn address<T>(&self) -> *const T {
        ptr::with_exposed_provenance(self.payload as usize)
    }
}

/// Memory of the shim for one value: two words.
pub type OutTensor = MaybeUninit<Tensor>;

const _: () = assert!(
    size_of::<OutTensor>() == 2 * size_of::<usize>() && align_of::<OutTensor>() == align_of::<usize>()
);

thread_local! {
    pub(crate) static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work` and converts its outcome to a status.
pub(crate) fn guarded(work: impl FnOnce() -> Result<()>) -> Status {
    let (status, message) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(Fault::Unsupported(why))) => (Status::Unsupported, why),
        Ok(Err(Fault::Wrong(why))) => (Status::Wrong, why),
        Ok(Err(Fault::Engine(error)))
            if error.is_failed_check() && error.op_name().is_some_and(is_index_error) =>
        {
            (Status::OutOfRange, error.to_string())
        }
        Ok(Err(Fault::Engine(error))) => (Status::Failed, error.to_string()),
        Err(_) => (Status::Failed, "bug: the engine's side of the device panicked".to_owned()),
    };
    MESSAGE.set(message);
    status
}

/// Whether the CPU raises an `IndexError` for such a call. `gather`, `scatter` and additions raise
/// a `RuntimeError`.
fn is_index_error(op: &str) -> bool {
    matches!(op, "index" | "index_put" | "index_select" | "index_copy" | "index_reduce" | "nll_loss")
}

/// Whether indices and other values are checked from now on.
#[unsafe(no_mangle)]
pub extern "C" fn flt_checks() -> bool {
    device::stream().is_ok_and(fuseline::Stream::checks_indices)
}

/// The error message of this thread's latest call that failed, or a requested text: UTF-8 that
/// lives until the next such call.
#[unsafe(no_mangle)]
pub extern "C" fn flt_message(len: &mut usize) -> *const u8 {
    MESSAGE.with_borrow(|message| {
        *len = message.len();
        message.as_ptr()
    })
}

/// A slice of a list in C.
///
/// # Safety
/// `start` points to `len` readable elements that live for `'a`, unless `len` is 0.
pub(crate) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if len == 0 || start.is_null() {
        return &[];
    }
    // SAFETY: the caller guarantees it, and the pointer is not null.
    unsafe { slice::from_raw_parts(start, len) }
}

/// Moves values into the shim's memory.
///
/// # Safety
/// `places` has room for that many values.
pub(crate) unsafe fn give(places: *mut OutTensor, values: impl ExactSizeIterator<Item = Tensor>) {
    if values.len() == 0 {
        return;
    }
    // SAFETY: the caller guarantees it.
    let places = unsafe { slice::from_raw_parts_mut(places, values.len()) };
    for (place, value) in places.iter_mut().zip(values) {
        place.write(value);
    }
}

fn type_of(ty: &FltType) -> Result<TensorType> {
    // SAFETY: the shim passes `rank` sizes, which live through the call.
    let dims = unsafe { list(ty.dims, ty.rank as usize) };
    let dims: SmallVec<[u64; 6]> = dims.iter().map(|&dim| u64::try_from(dim).unwrap_or(u64::MAX)).collect();
    let shape = Shape::new(&dims).map_err(fuseline::Error::from)?;
    Ok(TensorType::new(dtype_of(ty.dtype)?, shape))
}

fn dtype_of(code: u32) -> Result<DType> {
    match u8::try_from(code).ok().and_then(DType::from_code) {
        Some(dtype) => Ok(dtype),
        None => unsupported(format!("there is no element type {code}")),
    }
}

/// Reads an argument. Its tag says what the payload is. What an address points to lives through the
/// call.
fn arg(arg: &FltArg) -> Result<Arg<'_>> {
    let (payload, count) = (arg.payload, arg.count as usize);
    // SAFETY: the tag says that `count` such elements are there.
    let floats = || unsafe { list(arg.address(), count) };
    Ok(match arg.tag {
        // SAFETY: the tag says so; a missing tensor has a null address.
        1 => unsafe { arg.address::<Tensor>().as_ref() }.map_or(Arg::None, Arg::Tensor),
        2 => {
            // SAFETY: the tag says that `count` such elements are there.
            let values: &[*const Tensor] = unsafe { list(arg.address(), count) };
            // SAFETY: the tag says so; a missing tensor is null.
            Arg::Tensors(values.iter().map(|value| unsafe { value.as_ref() }).collect())
        }
        0 => Arg::None,
        3 => Arg::Int(payload as i64),
        4 => Arg::Float(f64::from_bits(payload)),
        5 => Arg::Bool(payload != 0),
        // SAFETY: the tag says that `count` such elements are there.
        6 => Arg::Ints(unsafe { list(arg.address(), count) }),
        7 => Arg::Floats(floats()),
        // SAFETY: the tag says that `count` such elements are there.
        8 => match std::str::from_utf8(unsafe { list(arg.address(), count) }) {
            Ok(text) => Arg::Text(text),
            Err(_) => return unsupported("a string is not UTF-8"),
        },
        9 => Arg::DType(dtype_of(payload as u32)?),
        10 => match floats() {
            [re, im] => Arg::Complex(*re, *im),
            _ => return unsupported("a complex number must have two parts"),
        },
        11 => Arg::Draw,
        other => return unsupported(format!("there is no argument kind {other}")),
    })
}

/// Returns the number of overloads that have a lowering.
#[unsafe(no_mangle)]
pub extern "C" fn flt_op_count() -> usize {
    ROWS.len()
}

/// Returns the name of an overload, as UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn flt_op_name(op: usize, len: &mut usize) -> *const u8 {
    let name = ROWS.get(op).map_or("", |row| row.name);
    *len = name.len();
    name.as_ptr()
}

/// All rows in one list, indexed by number.
static ROWS: LazyLock<Vec<&'static Row>> = LazyLock::new(|| ops::rows().collect());

fn lowered<'a>(op: usize, row: &Row, args: &'a [Arg<'a>], outs: &'a [TensorType]) -> Result<Results> {
    let results = match graph::recording() {
        Some(stream) => (row.lower)(&Call::new(&stream, args, outs)),
        None => lowering_cache::record(op, row, &Call::new(device::stream()?, args, outs)),
    };
    // If the engine refuses an op while it is recorded, the lowering does not cover the case.
    match results {
        Err(Fault::Engine(error)) if error.stage() == Stage::Record => unsupported(error.to_string()),
        other => other,
    }
}

/// Records a call. `results` has room for `room` values, and `made` is set to the number of values:
/// one for each result type, then those that the op writes to arguments although its schema does
/// not say so.
#[unsafe(no_mangle)]
pub extern "C" fn flt_record(
    op: usize,
    args: *const FltArg,
    arg_count: usize,
    outs: *const FltType,
    out_count: usize,
    results: *mut OutTensor,
    room: usize,
    made: &mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable arguments, which live through the call.
        let args = unsafe { list(args, arg_count) };
        // SAFETY: the shim passes that many readable types, which live through the call.
        let types = unsafe { list(outs, out_count) };
        let args: SmallVec<[Arg<'_>; 8]> = args.iter().map(arg).collect::<Result<_>>()?;
        let outs: SmallVec<[TensorType; 2]> = types.iter().map(type_of).collect::<Result<_>>()?;
        let Some(row) = ROWS.get(op) else { return unsupported(format!("there is no row {op}")) };
        let values = lowered(op, row, &args, &outs)?;
        let is_right = values.len() >= outs.len()
            && values.len() <= room
            && values.iter().zip(&outs).all(|(value, ty)| value.ty() == ty);
        if !is_right {
            let types: Vec<_> = values.iter().map(Tensor::ty).collect();
            return unsupported(format!(
                "bug: the lowering of {} returns {types:?} instead of {outs:?}",
                row.name
            ));
        }
        *made = values.len();
        // SAFETY: the shim provides `room` writable places, and `values` is not longer.
        unsafe { give(results, values.into_iter()) };
        Ok(())
    })
}

/// Records an op of [`quick::TWO`] on operands of one type. Neither `bool` nor integer division is
/// allowed.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick(op: usize, a: &Tensor, b: &Tensor, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(quick::TWO[op](a, b)?);
        Ok(())
    })
}

/// Records an op of [`quick::NUMBER`] on a floating-point tensor.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_number(op: usize, a: &Tensor, b: f64, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(quick::NUMBER[op](a, b)?);
        Ok(())
    })
}

/// Records an op of [`quick::ONE`] on a floating-point tensor.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_one(op: usize, a: &Tensor, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(quick::ONE[op](a)?);
        Ok(())
    })
}

/// Records the sum of a floating-point tensor over dimensions, counted from the first. With `keeps`
/// they remain, with size 1.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_sum(
    a: &Tensor,
    axes: *const i64,
    count: usize,
    keeps: bool,
    out: &mut OutTensor,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable numbers, which live through the call.
        out.write(quick::sum(a, unsafe { list(axes, count) }, keeps)?);
        Ok(())
    })
}

/// Records a selection between two tensors of one type and shape, by a `bool` tensor of that shape.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_where(condition: &Tensor, a: &Tensor, b: &Tensor, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(condition.select(a, b)?);
        Ok(())
    })
}

/// Converts the bytes of a CPU tensor to elements.
fn elements_of(ty: &TensorType, bytes: &[u8]) -> Vec<u8> {
    match ty.dtype() {
        // Uninitialized memory can hold any byte. Any byte but zero is true, as on the CPU.
        DType::Bool => bytes.iter().map(|&byte| u8::from(byte != 0)).collect(),
        _ => bytes.to_vec(),
    }
}

/// Makes a value of these elements in row-major order. Copies the bytes.
#[unsafe(no_mangle)]
pub extern "C" fn flt_upload(ty: &FltType, bytes: *const u8, len: usize, out: &mut OutTensor) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let bytes = unsafe { list(bytes, len) };
        let ty = type_of(ty)?;
        let elements = elements_of(&ty, bytes);
        let data = Literal::from_bytes(ty, elements);
        let data = data.map_err(|error| Fault::Unsupported(error.to_string()))?;
        out.write(device::stream()?.from_literal(&data)?);
        Ok(())
    })
}

/// Waits for a value and copies its elements. `len` must be their exact size.
#[unsafe(no_mangle)]
pub extern "C" fn flt_download(value: &Tensor, bytes: *mut u8, len: usize) -> Status {
    guarded(|| {
        let data = value.to_literal()?;
        if data.bytes().len() != len {
            return unsupported(format!(
                "the buffer has {len} bytes, but the value has {}",
                data.bytes().len()
            ));
        }
        if len > 0 {
            // SAFETY: the shim provides `len` writable bytes, which need not be initialised, and
            // `data` owns its bytes, so the two do not overlap.
            unsafe { ptr::copy_nonoverlapping(data.bytes().as_ptr(), bytes, len) };
        }
        Ok(())
    })
}

/// Callback for a value's data. It gets the caller's pointer, whether there is data, and the bytes
/// or the UTF-8 error message, which live through the call.
type DataCallback = extern "C" fn(*mut c_void, bool, *const u8, usize);

/// The caller's pointer for [`DataCallback`]. The shim allows any thread to use it.
struct CallbackData(*mut c_void);

// SAFETY: the shim lets any thread use the pointer (see the obligations in the module docs).
unsafe impl Send for CallbackData {}

/// Starts to read a value. `heard` is called once, on any thread, possibly before this returns. It
/// must not wait for the device.
#[unsafe(no_mangle)]
pub extern "C" fn flt_fetch(value: &Tensor, heard: DataCallback, given: *mut c_void) -> Status {
    let ear = CallbackData(given);
    guarded(|| {
        value.read_with(move |data| {
            let ear = ear;
            match data {
                Ok(data) => heard(ear.0, true, data.bytes().as_ptr(), data.bytes().len()),
                Err(error) => {
                    let message = error.to_string();
                    heard(ear.0, false, message.as_ptr(), message.len());
                }
            }
        });
        Ok(())
    })
}

/// Makes a value whose data comes later. The promise must be passed once, by any thread, to
/// [`flt_keep`] or [`flt_break`].
#[unsafe(no_mangle)]
pub extern "C" fn flt_promise(ty: &FltType, out: &mut OutTensor, promise: &mut *mut Promised) -> Status {
    guarded(|| {
        let (value, promised) = device::stream()?.promised(type_of(ty)?);
        out.write(value);
        *promise = Box::into_raw(Box::new(promised));
        Ok(())
    })
}

/// Provides the data of a promised value in row-major order. Copies the bytes.
#[unsafe(no_mangle)]
pub extern "C" fn flt_keep(promise: *mut Promised, bytes: *const u8, len: usize) -> Status {
    // SAFETY: the shim passes a pointer from `flt_promise`, once.
    let promised = unsafe { Box::from_raw(promise) };
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let bytes = unsafe { list(bytes, len) };
        Ok(promised.keep(bytes)?)
    })
}

/// Fails a promised value with a reason, as UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn flt_break(promise: *mut Promised, why: *const u8, len: usize) -> Status {
    // SAFETY: the shim passes a pointer from `flt_promise`, once.
    let promised = unsafe { Box::from_raw(promise) };
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let why = unsafe { list(why, len) };
        promised.fail_with(String::from_utf8_lossy(why));
        Ok(())
    })
}

/// Reads a storage through a view, which has one stride for each size.
#[unsafe(no_mangle)]
pub extern "C" fn flt_read(
    base: &Tensor,
    ty: &FltType,
    strides: *const i64,
    offset: i64,
    out: &mut OutTensor,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes one stride for each size, which live through the call.
        let strides = unsafe { list(strides, ty.rank as usize) };
        out.write(view::read(base, &View { ty: &type_of(ty)?, strides, offset })?);
        Ok(())
    })
}

/// Writes a storage through a view. Returns the new value and its sizes; `sizes` has room for
/// [`MAX_RANK`] of them.
#[unsafe(no_mangle)]
pub extern "C" fn flt_write(
    base: &Tensor,
    ty: &FltType,
    strides: *const i64,
    offset: i64,
    value: &Tensor,
    out: &mut OutTensor,
    sizes: &mut [i64; MAX_RANK],
    rank: &mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes one stride for each size, which live through the call.
        let strides = unsafe { list(strides, ty.rank as usize) };
        let written = view::write(base, &View { ty: &type_of(ty)?, strides, offset }, value)?;
        *rank = written.rank();
        for (size, &dim) in sizes.iter_mut().zip(written.dims()) {
            *size = dim as i64;
        }
        out.write(written);
        Ok(())
    })
}

/// Converts a value to another element type and to a shape that it broadcasts to.
#[unsafe(no_mangle)]
pub extern "C" fn flt_convert(value: &Tensor, ty: &FltType, out: &mut OutTensor) -> Status {
    guarded(|| {
        let ty = type_of(ty)?;
        out.write(ops::stretched(&cast(value, ty.dtype())?, ty.sizes())?);
        Ok(())
    })
}

/// Conjugates a value, negates it, or both.
#[unsafe(no_mangle)]
pub extern "C" fn flt_bits(value: &Tensor, conjugates: bool, negates: bool, out: &mut OutTensor) -> Status {
    guarded(|| {
        let mut meant = value.clone();
        if conjugates && meant.dtype().is_complex() {
            meant = meant.conj()?;
        }
        if negates {
            meant = meant.neg()?;
        }
        out.write(meant);
        Ok(())
    })
}

/// Makes zeros, in this thread's graph recording if `in_graph`.
#[unsafe(no_mangle)]
pub extern "C" fn flt_zeros(ty: &FltType, in_graph: bool, out: &mut OutTensor) -> Status {
    guarded(|| {
        let ty = type_of(ty)?;
        let zeros = match graph::recording().filter(|_| in_graph) {
            Some(stream) => stream.zeros(ty.dtype(), ty.sizes())?,
            None => device::stream()?.zeros(ty.dtype(), ty.sizes())?,
        };
        out.write(zeros);
        Ok(())
    })
}

/// Begins to record a graph on this thread. The name is UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_begin(name: *const u8, name_len: usize) -> Status {
    // SAFETY: the shim passes that many readable bytes, which live through the call.
    let name = unsafe { list(name, name_len) };
    guarded(|| graph::begin(&String::from_utf8_lossy(name)))
}

/// Adds the next input of the graph.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_param(ty: &FltType, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(graph::param(&type_of(ty)?)?);
        Ok(())
    })
}

/// Ends the graph, which returns these values. Returns its number and how many times a call draws
/// random numbers.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_end(
    returns: *const &Tensor,
    count: usize,
    number: &mut u64,
    draws: &mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable values, which live through the call.
        let returns = unsafe { list(returns, count) };
        let returns: Vec<Tensor> = returns.iter().map(|&value| value.clone()).collect();
        (*number, *draws) = graph::end(&returns)?;
        Ok(())
    })
}

/// Discards this thread's graph recording.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_abort() -> Status {
    guarded(|| {
        graph::abort();
        Ok(())
    })
}

/// Forgets a graph.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_forget(number: u64) -> Status {
    guarded(|| {
        graph::forget(number);
        Ok(())
    })
}

/// Records a call of a graph after a flush, as one op or as the graph's ops. `draws` has a seed and
/// a call number for each draw. There is room for exactly the graph's results.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_call(
    number: u64,
    is_apart: bool,
    inputs: *const &Tensor,
    input_count: usize,
    draws: *const [u64; 2],
    draw_count: usize,
    results: *mut OutTensor,
    room: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable values, which live through the call.
        let inputs = unsafe { list(inputs, input_count) };
        // SAFETY: the shim passes that many readable pairs, which live through the call.
        let draws = unsafe { list(draws, draw_count) };
        let made = graph::call(number, is_apart, inputs, draws)?;
        if made.len() != room {
            return unsupported(format!(
                "bug: graph {number} returns {} results instead of {room}",
                made.len()
            ));
        }
        // SAFETY: the shim provides that many writable places, which hold no value.
        unsafe { give(results, made.into_iter()) };
        Ok(())
    })
}

/// Clones a reference to a value.
#[unsafe(no_mangle)]
pub extern "C" fn flt_retain(value: &Tensor, out: &mut OutTensor) {
    out.write(value.clone());
}

/// Releases a reference to a value.
#[unsafe(no_mangle)]
pub extern "C" fn flt_release(value: &mut OutTensor) {
    // A panic in the drop, which may record, must not unwind into C++.
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: the place holds a value, and the shim releases it once.
        unsafe { value.assume_init_drop() };
    }));
    drop(dropped);
}

/// Waits until everything that was recorded is computed.
#[unsafe(no_mangle)]
pub extern "C" fn flt_synchronize() -> Status {
    guarded(|| Ok(device::engine()?.synchronize()?))
}

/// Starts everything that was recorded.
#[unsafe(no_mangle)]
pub extern "C" fn flt_flush() -> Status {
    guarded(|| {
        device::stream()?.flush();
        Ok(())
    })
}

/// The modes, by their numbers at the C boundary.
const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

/// Sets the mode.
#[unsafe(no_mangle)]
pub extern "C" fn flt_set_mode(mode: u32) -> Status {
    guarded(|| match MODES.get(mode as usize) {
        Some(&mode) => {
            device::engine()?.set_mode(mode);
            Ok(())
        }
        None => unsupported(format!("there is no mode {mode}")),
    })
}

/// Returns the mode.
#[unsafe(no_mangle)]
pub extern "C" fn flt_mode(mode: &mut u32) -> Status {
    guarded(|| {
        let now = device::engine()?.mode();
        *mode = MODES.iter().position(|one| *one == now).unwrap_or(0) as u32;
        Ok(())
    })
}

/// Sets the default plugin path, as UTF-8. Call it before the first use of the device.
#[unsafe(no_mangle)]
pub extern "C" fn flt_set_plugin(path: *const u8, len: usize) {
    // SAFETY: the shim passes that many readable bytes, which live through the call.
    let path = unsafe { list(path, len) };
    device::set_plugin(String::from_utf8_lossy(path).into_owned().into());
}

/// Writes the engine's counters for [`flt_message`], one line of name and number each.
#[unsafe(no_mangle)]
pub extern "C" fn flt_counters() -> Status {
    guarded(|| {
        let counters = device::engine()?.counters();
        MESSAGE.set(device::counters_text(&counters));
        Ok(())
    })
}

/// Sets an option of the engine, as UTF-8, before it is opened.
#[unsafe(no_mangle)]
pub extern "C" fn flt_configure(
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
) -> Status {
    guarded(|| {
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let name = unsafe { list(name, name_len) };
        // SAFETY: the shim passes that many readable bytes, which live through the call.
        let value = unsafe { list(value, value_len) };
        device::configure(&String::from_utf8_lossy(name), &String::from_utf8_lossy(value))
    })
}

/// Writes the engine's recent diagnostics for [`flt_message`], one per line.
#[unsafe(no_mangle)]
pub extern "C" fn flt_explain() -> Status {
    guarded(|| {
        MESSAGE.set(device::explained());
        Ok(())
    })
}

/// Drops the executables in memory. Those on disk stay.
#[unsafe(no_mangle)]
pub extern "C" fn flt_clear_cache() -> Status {
    guarded(|| {
        device::engine()?.clear_cache();
        Ok(())
    })
}
