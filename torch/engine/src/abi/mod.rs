//! The border to the shim (`torch/csrc/engine.h`): plain structs and functions, built and shipped
//! together with it.
//!
//! Obligations of the shim, on which the safety of every function here rests:
//! - Pointers are what the header says, for the length of the call. A list of no elements may have
//!   no address; nothing else is null.
//! - What is handed over for a later call may be used by any thread.
//! - A value is two words in the shim's memory, which this side fills. It may be moved, is used
//!   until it is released, and is released once. Where a value is to be put there is none.
//!
//! Every function returns a [`Status`]; what went wrong is told by [`flt_message`] on the same
//! thread. Panics end here (TB2).

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
use std::slice;
use std::sync::LazyLock;

use fuseline::fusion::limits::MAX_RANK;
use fuseline::fusion::{DType, Literal, Shape, TensorType};
use fuseline::{Mode, Promised, Stage, Tensor};
use smallvec::SmallVec;

use crate::call::{Arg, Call, Fault, Result, Results, Row, unsupported};
use crate::device;
use crate::graph;
use crate::ops::{self, cast};
use crate::quick;
use crate::view::{self, View};

/// What a call came to.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It is done.
    Ok = 0,
    /// The engine refused it, or the device failed.
    Failed = 1,
    /// There is no lowering for such arguments.
    Unsupported = 2,
    /// PyTorch has an error for such arguments.
    Wrong = 3,
    /// As `Failed`, by an index or label that is out of range, where the CPU raises an
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

/// An argument: which of the kinds that [`Arg`] has, how many, and it or where it is.
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
        std::ptr::with_exposed_provenance(self.payload as usize)
    }
}

/// Where the shim wants a value, or has one that it gives back: two words.
pub type OutTensor = MaybeUninit<Tensor>;

const _: () = assert!(
    size_of::<OutTensor>() == 2 * size_of::<usize>() && align_of::<OutTensor>() == align_of::<usize>()
);

thread_local! {
    pub(crate) static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs what a function does, and makes a status of it.
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

/// Whether the CPU's error of such a call is an `IndexError`: for `gather`, `scatter` and additions
/// it is a `RuntimeError`.
fn is_index_error(op: &str) -> bool {
    matches!(op, "index" | "index_put" | "index_select" | "index_copy" | "index_reduce" | "nll_loss")
}

/// Whether values are checked that are used from now on: indices and what else there is.
#[unsafe(no_mangle)]
pub extern "C" fn flt_checks() -> bool {
    device::stream().is_ok_and(fuseline::Stream::checks_indices)
}

/// What went wrong in the latest call on this thread that did not end well: UTF-8 that lives until
/// the next such call.
#[unsafe(no_mangle)]
pub extern "C" fn flt_message(len: &mut usize) -> *const u8 {
    MESSAGE.with_borrow(|message| {
        *len = message.len();
        message.as_ptr()
    })
}

/// A list of C's.
///
/// # Safety
/// There are so many elements, for so long.
pub(crate) unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if len == 0 || start.is_null() {
        return &[];
    }
    // SAFETY: holds because the caller says so.
    unsafe { slice::from_raw_parts(start, len) }
}

/// Puts values where the shim has room for them.
///
/// # Safety
/// There is room for as many.
pub(crate) unsafe fn give(places: *mut OutTensor, values: impl ExactSizeIterator<Item = Tensor>) {
    if values.len() == 0 {
        return;
    }
    // SAFETY: holds because the caller says so.
    let places = unsafe { slice::from_raw_parts_mut(places, values.len()) };
    for (place, value) in places.iter_mut().zip(values) {
        place.write(value);
    }
}

fn type_of(ty: &FltType) -> Result<TensorType> {
    // SAFETY: holds because the shim owes as many sizes as it says.
    let dims = unsafe { list(ty.dims, ty.rank as usize) };
    let dims: SmallVec<[u64; 6]> = dims.iter().map(|&dim| u64::try_from(dim).unwrap_or(u64::MAX)).collect();
    let shape = Shape::new(&dims).map_err(fuseline::Error::from)?;
    Ok(TensorType::new(dtype_of(ty.dtype)?, shape))
}

fn dtype_of(code: u32) -> Result<DType> {
    match u8::try_from(code).ok().and_then(DType::from_code) {
        Some(dtype) => Ok(dtype),
        None => unsupported(format!("element type {code}")),
    }
}

/// An argument. Its tag says what the shim has put there; what an address points to lives through
/// the call.
fn arg(arg: &FltArg) -> Result<Arg<'_>> {
    let (payload, count) = (arg.payload, arg.count as usize);
    // SAFETY: as the function says.
    let floats = || unsafe { list(arg.address(), count) };
    Ok(match arg.tag {
        // SAFETY: as the function says; one that is missing has no address.
        1 => unsafe { arg.address::<Tensor>().as_ref() }.map_or(Arg::None, Arg::Tensor),
        2 => {
            // SAFETY: as the function says.
            let values: &[*const Tensor] = unsafe { list(arg.address(), count) };
            // SAFETY: as the function says; one that is missing is null.
            Arg::Tensors(values.iter().map(|value| unsafe { value.as_ref() }).collect())
        }
        0 => Arg::None,
        3 => Arg::Int(payload as i64),
        4 => Arg::Float(f64::from_bits(payload)),
        5 => Arg::Bool(payload != 0),
        // SAFETY: as the function says.
        6 => Arg::Ints(unsafe { list(arg.address(), count) }),
        7 => Arg::Floats(floats()),
        // SAFETY: as the function says.
        8 => match std::str::from_utf8(unsafe { list(arg.address(), count) }) {
            Ok(text) => Arg::Text(text),
            Err(_) => return unsupported("a text that is not UTF-8"),
        },
        9 => Arg::DType(dtype_of(payload as u32)?),
        10 => match floats() {
            [re, im] => Arg::Complex(*re, *im),
            _ => return unsupported("a complex number of other than two parts"),
        },
        11 => Arg::Draw,
        other => return unsupported(format!("an argument of kind {other}")),
    })
}

/// How many overloads are lowered.
#[unsafe(no_mangle)]
pub extern "C" fn flt_op_count() -> usize {
    ROWS.len()
}

/// The name of an overload, as UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn flt_op_name(op: usize, len: &mut usize) -> *const u8 {
    let name = ROWS.get(op).map_or("", |row| row.name);
    *len = name.len();
    name.as_ptr()
}

/// The rows in one list, so that a call finds its own at once.
static ROWS: LazyLock<Vec<&'static Row>> = LazyLock::new(|| ops::rows().collect());

fn lowered<'a>(row: &Row, args: &'a [Arg<'a>], outs: &'a [TensorType]) -> Result<Results> {
    let recording = graph::recording();
    let stream = match &recording {
        Some(stream) => stream,
        None => device::stream()?,
    };
    let results = (row.lower)(&Call { stream, args, outs });
    // An op that is refused as it is recorded is a case that the lowering does not cover.
    match results {
        Err(Fault::Engine(error)) if error.stage() == Stage::Record => unsupported(error.to_string()),
        other => other,
    }
}

/// Records a call. `results` has room for `room` values; as many as were made is told in `made`:
/// one for each result type, and behind them those that the op writes to arguments though its
/// schema does not say so.
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
        // SAFETY: holds because the shim gives so many arguments.
        let args = unsafe { list(args, arg_count) };
        // SAFETY: holds because the shim gives so many types.
        let types = unsafe { list(outs, out_count) };
        let args: SmallVec<[Arg<'_>; 8]> = args.iter().map(arg).collect::<Result<_>>()?;
        let outs: SmallVec<[TensorType; 2]> = types.iter().map(type_of).collect::<Result<_>>()?;
        let Some(row) = ROWS.get(op) else { return unsupported(format!("row {op}")) };
        let values = lowered(row, &args, &outs)?;
        let is_right = values.len() >= outs.len()
            && values.len() <= room
            && values.iter().zip(&outs).all(|(value, ty)| value.ty() == ty);
        if !is_right {
            let types: Vec<_> = values.iter().map(Tensor::ty).collect();
            return unsupported(format!("bug: the lowering of {} gives {types:?} for {outs:?}", row.name));
        }
        *made = values.len();
        // SAFETY: holds because the shim gives room for more.
        unsafe { give(results, values.into_iter()) };
        Ok(())
    })
}

/// Records an op of [`quick::TWO`] on operands of one type. Not for `bool`, nor division for
/// integers.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick(op: usize, a: &Tensor, b: &Tensor, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(quick::TWO[op](a, b)?);
        Ok(())
    })
}

/// Records an op of [`quick::NUMBER`] on a tensor of floats.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_number(op: usize, a: &Tensor, b: f64, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(quick::NUMBER[op](a, b)?);
        Ok(())
    })
}

/// Records an op of [`quick::ONE`] on a tensor of floats.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_one(op: usize, a: &Tensor, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(quick::ONE[op](a)?);
        Ok(())
    })
}

/// Records the sum of a tensor of floats over dimensions, counted from the first. With `keeps` they
/// stay, of size 1.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_sum(
    a: &Tensor,
    axes: *const i64,
    count: usize,
    keeps: bool,
    out: &mut OutTensor,
) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives so many numbers.
        out.write(quick::sum(a, unsafe { list(axes, count) }, keeps)?);
        Ok(())
    })
}

/// Records the choice between the elements of two tensors of one type and shape, by one of `bool`
/// in that shape.
#[unsafe(no_mangle)]
pub extern "C" fn flt_quick_where(condition: &Tensor, a: &Tensor, b: &Tensor, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(condition.select(a, b)?);
        Ok(())
    })
}

/// The elements that a tensor of the CPU has in these bytes.
fn elements_of(ty: &TensorType, bytes: &[u8]) -> Vec<u8> {
    match ty.dtype() {
        // Memory that nobody has written to is anything: whatever is not zero is true, as the CPU
        // takes it.
        DType::Bool => bytes.iter().map(|&byte| u8::from(byte != 0)).collect(),
        _ => bytes.to_vec(),
    }
}

/// A value of these elements, in row-major order; the bytes are copied.
#[unsafe(no_mangle)]
pub extern "C" fn flt_upload(ty: &FltType, bytes: *const u8, len: usize, out: &mut OutTensor) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives so many bytes.
        let bytes = unsafe { list(bytes, len) };
        let ty = type_of(ty)?;
        let elements = elements_of(&ty, bytes);
        let data = Literal::from_bytes(ty, elements);
        let data = data.map_err(|error| Fault::Unsupported(error.to_string()))?;
        out.write(device::stream()?.from_literal(&data)?);
        Ok(())
    })
}

/// Waits for a value and copies its elements, for which there is just room.
#[unsafe(no_mangle)]
pub extern "C" fn flt_download(value: &Tensor, bytes: *mut u8, len: usize) -> Status {
    guarded(|| {
        let data = value.to_literal()?;
        if data.bytes().len() != len {
            return unsupported(format!("{len} bytes for a value of {}", data.bytes().len()));
        }
        if len > 0 {
            // SAFETY: holds because the shim gives room for so many bytes, which it has written
            // before.
            unsafe { slice::from_raw_parts_mut(bytes, len) }.copy_from_slice(data.bytes());
        }
        Ok(())
    })
}

/// What hears of a value's data: what it was given, whether there is data, and the bytes of that,
/// or what went wrong as UTF-8, for the call.
type Heard = extern "C" fn(*mut c_void, bool, *const u8, usize);

/// Where [`Heard`] looks for what it was given. The shim says that any thread may.
struct Ear(*mut c_void);

// SAFETY: holds because the shim lets any thread have it (obligations).
unsafe impl Send for Ear {}

/// Starts to read a value. `heard` is called once: on any thread, possibly before this returns; it
/// must not wait for the device.
#[unsafe(no_mangle)]
pub extern "C" fn flt_fetch(value: &Tensor, heard: Heard, given: *mut c_void) -> Status {
    let ear = Ear(given);
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

/// A value whose data is to come, and the duty to bring it: to be given back once, to [`flt_keep`]
/// or [`flt_break`], by any thread.
#[unsafe(no_mangle)]
pub extern "C" fn flt_promise(ty: &FltType, out: &mut OutTensor, promise: &mut *mut Promised) -> Status {
    guarded(|| {
        let (value, promised) = device::stream()?.promised(type_of(ty)?);
        out.write(value);
        *promise = Box::into_raw(Box::new(promised));
        Ok(())
    })
}

/// Brings the data of a promised value: in row-major order; the bytes are copied.
#[unsafe(no_mangle)]
pub extern "C" fn flt_keep(promise: *mut Promised, bytes: *const u8, len: usize) -> Status {
    // SAFETY: holds because the shim gives back what `flt_promise` gave, once.
    let promised = unsafe { Box::from_raw(promise) };
    guarded(|| {
        // SAFETY: holds because the shim gives so many bytes.
        let bytes = unsafe { list(bytes, len) };
        Ok(promised.keep(bytes)?)
    })
}

/// Says why a promised value will have no data, as UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn flt_break(promise: *mut Promised, why: *const u8, len: usize) -> Status {
    // SAFETY: holds because the shim gives back what `flt_promise` gave, once.
    let promised = unsafe { Box::from_raw(promise) };
    guarded(|| {
        // SAFETY: holds because the shim gives so many bytes.
        let why = unsafe { list(why, len) };
        promised.fail_with(String::from_utf8_lossy(why));
        Ok(())
    })
}

/// What a view sees of a storage; there are as many strides as sizes.
#[unsafe(no_mangle)]
pub extern "C" fn flt_read(
    base: &Tensor,
    ty: &FltType,
    strides: *const i64,
    offset: i64,
    out: &mut OutTensor,
) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives as many strides as sizes.
        let strides = unsafe { list(strides, ty.rank as usize) };
        out.write(view::read(base, &View { ty: &type_of(ty)?, strides, offset })?);
        Ok(())
    })
}

/// A storage after a write through a view, and the sizes that its value has now: `sizes` has room
/// for [`MAX_RANK`] of them.
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
        // SAFETY: holds because the shim gives as many strides as sizes.
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

/// The value in another element type, and in a shape that it broadcasts to.
#[unsafe(no_mangle)]
pub extern "C" fn flt_convert(value: &Tensor, ty: &FltType, out: &mut OutTensor) -> Status {
    guarded(|| {
        let ty = type_of(ty)?;
        out.write(ops::stretched(&cast(value, ty.dtype())?, ty.sizes())?);
        Ok(())
    })
}

/// The conjugate of a value, its negative, or both.
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

/// Zeros, in the graph that this thread records if `in_graph`.
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

/// Begins a graph on this thread; its name is UTF-8.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_begin(name: *const u8, name_len: usize) -> Status {
    // SAFETY: holds because the shim gives so many bytes.
    let name = unsafe { list(name, name_len) };
    guarded(|| graph::begin(&String::from_utf8_lossy(name)))
}

/// The next input of the graph.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_param(ty: &FltType, out: &mut OutTensor) -> Status {
    guarded(|| {
        out.write(graph::param(&type_of(ty)?)?);
        Ok(())
    })
}

/// Ends the graph with what it returns; says its number, and how many times a call draws random
/// numbers.
#[unsafe(no_mangle)]
pub extern "C" fn flt_graph_end(
    returns: *const &Tensor,
    count: usize,
    number: &mut u64,
    draws: &mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives so many values.
        let returns = unsafe { list(returns, count) };
        let returns: Vec<Tensor> = returns.iter().map(|&value| value.clone()).collect();
        (*number, *draws) = graph::end(&returns)?;
        Ok(())
    })
}

/// Forgets the graph that this thread records.
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

/// Records a call of a graph behind a flush: as one op, or as its own. `draws` has a seed and the
/// number of a call for each time that it draws. There is room for just as many results as it has.
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
        // SAFETY: holds because the shim gives so many values.
        let inputs = unsafe { list(inputs, input_count) };
        // SAFETY: holds because the shim gives so many pairs.
        let draws = unsafe { list(draws, draw_count) };
        let made = graph::call(number, is_apart, inputs, draws)?;
        if made.len() != room {
            return unsupported(format!("bug: graph {number} gives {} results for {room}", made.len()));
        }
        // SAFETY: holds because the shim gives room for so many.
        unsafe { give(results, made.into_iter()) };
        Ok(())
    })
}

/// Another hold on a value.
#[unsafe(no_mangle)]
pub extern "C" fn flt_retain(value: &Tensor, out: &mut OutTensor) {
    out.write(value.clone());
}

/// Gives a hold back.
#[unsafe(no_mangle)]
pub extern "C" fn flt_release(value: &mut OutTensor) {
    // What a drop records must not unwind into C++.
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: holds because there is a value, and the shim releases it once.
        unsafe { value.assume_init_drop() };
    }));
    drop(dropped);
}

/// Waits until all that was recorded has been computed.
#[unsafe(no_mangle)]
pub extern "C" fn flt_synchronize() -> Status {
    guarded(|| Ok(device::engine()?.synchronize()?))
}

/// Has everything that was recorded run.
#[unsafe(no_mangle)]
pub extern "C" fn flt_flush() -> Status {
    guarded(|| {
        device::stream()?.flush();
        Ok(())
    })
}

/// The modes, by their numbers at the border.
const MODES: [Mode; 3] = [Mode::Fused, Mode::Strict, Mode::Debug];

/// Sets the mode.
#[unsafe(no_mangle)]
pub extern "C" fn flt_set_mode(mode: u32) -> Status {
    guarded(|| match MODES.get(mode as usize) {
        Some(&mode) => {
            device::engine()?.set_mode(mode);
            Ok(())
        }
        None => unsupported(format!("mode {mode}")),
    })
}

/// The mode.
#[unsafe(no_mangle)]
pub extern "C" fn flt_mode(mode: &mut u32) -> Status {
    guarded(|| {
        let now = device::engine()?.mode();
        *mode = MODES.iter().position(|one| *one == now).unwrap_or(0) as u32;
        Ok(())
    })
}

/// The plugin to use where nobody says which, as UTF-8. Before the first use of the device.
#[unsafe(no_mangle)]
pub extern "C" fn flt_set_plugin(path: *const u8, len: usize) {
    // SAFETY: holds because the shim gives so many bytes.
    let path = unsafe { list(path, len) };
    device::set_plugin(String::from_utf8_lossy(path).into_owned().into());
}

/// The engine's counters, as lines of a name and a number, by [`flt_message`].
#[unsafe(no_mangle)]
pub extern "C" fn flt_counters() -> Status {
    guarded(|| {
        let counters = device::engine()?.counters();
        MESSAGE.set(device::counters_text(&counters));
        Ok(())
    })
}

/// Sets an option of the engine's, as UTF-8, before it is opened.
#[unsafe(no_mangle)]
pub extern "C" fn flt_configure(
    name: *const u8,
    name_len: usize,
    value: *const u8,
    value_len: usize,
) -> Status {
    guarded(|| {
        // SAFETY: holds because the shim gives so many bytes.
        let name = unsafe { list(name, name_len) };
        // SAFETY: holds because the shim gives so many bytes.
        let value = unsafe { list(value, value_len) };
        device::configure(&String::from_utf8_lossy(name), &String::from_utf8_lossy(value))
    })
}

/// What the engine told of late, a line each, by [`flt_message`].
#[unsafe(no_mangle)]
pub extern "C" fn flt_explain() -> Status {
    guarded(|| {
        MESSAGE.set(device::explained());
        Ok(())
    })
}

/// Forgets the executables in memory; those on disk stay.
#[unsafe(no_mangle)]
pub extern "C" fn flt_clear_cache() -> Status {
    guarded(|| {
        device::engine()?.clear_cache();
        Ok(())
    })
}
