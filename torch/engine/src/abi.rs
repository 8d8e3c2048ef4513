//! The border to the shim (`torch/csrc/engine.h`): plain structs and functions, built and shipped together with it.
//!
//! Obligations of the shim, on which the safety of every function here rests:
//! - Pointers are what the header says, for the length of the call.
//! - A value is two words in the shim's memory, which this side fills. It may be moved, is used until it is released, and is released once.
//!
//! Every function returns a [`Status`]; what went wrong is told by [`flt_message`] on the same thread. Panics end here (TB2).

#![allow(unsafe_code, reason = "a border to C++")]
#![allow(clippy::missing_safety_doc, reason = "the module says what the shim owes")]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use fuseline::Tensor;
use fuseline::fusion::{DType, Literal, Shape, TensorType};
use smallvec::SmallVec;

use crate::call::{Arg, Call, Fault, Result, Results, Row, unsupported};
use crate::device;
use crate::ops::{self, cast};
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

/// An argument: which of the kinds below, how many, and it or where it is.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct FltArg {
    tag: u32,
    count: u32,
    payload: Payload,
}

#[repr(C)]
#[derive(Clone, Copy)]
union Payload {
    value: *const Tensor,
    values: *const *const Tensor,
    int: i64,
    float: f64,
    ints: *const i64,
    floats: *const f64,
    text: *const u8,
}

impl std::fmt::Debug for FltArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FltArg").field("tag", &self.tag).field("count", &self.count).finish_non_exhaustive()
    }
}

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs what a function does, and makes a status of it.
fn guarded(work: impl FnOnce() -> Result<()>) -> Status {
    let (status, message) = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return Status::Ok,
        Ok(Err(Fault::Unsupported(why))) => (Status::Unsupported, why),
        Ok(Err(Fault::Engine(error))) => (Status::Failed, error.to_string()),
        Err(_) => (Status::Failed, "bug: the engine's side of the device panicked".to_owned()),
    };
    MESSAGE.set(message);
    status
}

/// What went wrong in the latest call on this thread that did not end well: UTF-8 that lives until the next such call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_message(len: *mut usize) -> *const u8 {
    MESSAGE.with_borrow(|message| {
        // SAFETY: holds because the shim gives a place for the length.
        unsafe { *len = message.len() };
        message.as_ptr()
    })
}

/// A list of C's; an empty one may have no address.
unsafe fn list<'a, T>(start: *const T, len: usize) -> &'a [T] {
    if len == 0 || start.is_null() {
        return &[];
    }
    // SAFETY: holds because the shim owes such a list.
    unsafe { slice::from_raw_parts(start, len) }
}

unsafe fn type_of(ty: &FltType) -> Result<TensorType> {
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

unsafe fn arg<'a>(arg: &'a FltArg) -> Result<Arg<'a>> {
    let (payload, count) = (&arg.payload, arg.count as usize);
    // SAFETY: holds because the tag says which part of the payload the shim has filled, and what it points to lives through the call.
    unsafe {
        Ok(match arg.tag {
            0 => Arg::None,
            1 => Arg::Tensor(&*payload.value),
            2 => Arg::Tensors(list(payload.values, count).iter().map(|value| value.as_ref()).collect()),
            3 => Arg::Int(payload.int),
            4 => Arg::Float(payload.float),
            5 => Arg::Bool(payload.int != 0),
            6 => Arg::Ints(list(payload.ints, count)),
            7 => Arg::Floats(list(payload.floats, count)),
            8 => match std::str::from_utf8(list(payload.text, count)) {
                Ok(text) => Arg::Text(text),
                Err(_) => return unsupported("a text that is not UTF-8"),
            },
            9 => Arg::DType(dtype_of(payload.int as u32)?),
            10 => match list(payload.floats, count) {
                [re, im] => Arg::Complex(*re, *im),
                _ => return unsupported("a complex number of other than two parts"),
            },
            other => return unsupported(format!("an argument of kind {other}")),
        })
    }
}

const _: () = assert!(size_of::<Tensor>() == 2 * size_of::<usize>() && align_of::<Tensor>() == align_of::<usize>());

unsafe fn give(place: *mut Tensor, value: Tensor) {
    // SAFETY: holds because the shim gives a place of two words, in which no value is.
    unsafe { place.write(value) };
}

/// How many overloads are lowered.
#[unsafe(no_mangle)]
pub extern "C" fn flt_op_count() -> usize {
    ops::rows().count()
}

/// The name of an overload, as UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_op_name(op: usize, len: *mut usize) -> *const u8 {
    let name = ops::rows().nth(op).map_or("", |row| row.name);
    // SAFETY: holds because the shim gives a place for the length.
    unsafe { *len = name.len() };
    name.as_ptr()
}

/// The rows in one list, so that a call finds its own at once.
static ROWS: std::sync::LazyLock<Vec<&'static Row>> = std::sync::LazyLock::new(|| ops::rows().collect());

fn lowered(row: &Row, args: &[Arg<'_>], outs: &[TensorType]) -> Result<Results> {
    (row.lower)(&Call { stream: device::stream()?, args, outs })
}

/// Records a call. `results` has room for `room` values; as many as were made is told in `made`: one for each result type, and behind them those
/// that the op writes to arguments though its schema does not say so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_record(
    op: usize,
    args: *const FltArg,
    arg_count: usize,
    outs: *const FltType,
    out_count: usize,
    results: *mut Tensor,
    room: usize,
    made: *mut usize,
) -> Status {
    guarded(|| {
        // SAFETY: holds by the module's obligations, as in every function here.
        let (args, types) = unsafe { (list(args, arg_count), list(outs, out_count)) };
        let args: SmallVec<[Arg<'_>; 8]> =
            // SAFETY: as above.
            args.iter().map(|one| unsafe { arg(one) }).collect::<Result<_>>()?;
        // SAFETY: as above.
        let outs: SmallVec<[TensorType; 2]> =
            types.iter().map(|ty| unsafe { type_of(ty) }).collect::<Result<_>>()?;
        let row = ROWS[op];
        let values = lowered(row, &args, &outs)?;
        let is_right = values.len() >= outs.len()
            && values.len() <= room
            && values.iter().zip(&outs).all(|(value, ty)| value.ty() == ty);
        if !is_right {
            let types: Vec<_> = values.iter().map(Tensor::ty).collect();
            return unsupported(format!("bug: the lowering of {} gives {types:?} for {outs:?}", row.name));
        }
        // SAFETY: as above.
        unsafe { *made = values.len() };
        for (at, value) in values.into_iter().enumerate() {
            // SAFETY: as above; there is room.
            unsafe { give(results.add(at), value) };
        }
        Ok(())
    })
}

/// A value of these elements, in row-major order; the bytes are copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_upload(
    ty: *const FltType,
    bytes: *const u8,
    len: usize,
    out: *mut Tensor,
) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`.
        let ty = unsafe { type_of(&*ty) }?;
        // SAFETY: as in `flt_record`.
        let bytes = unsafe { list(bytes, len) };
        let data =
            Literal::from_bytes(ty, bytes.to_vec()).map_err(|error| Fault::Unsupported(error.to_string()))?;
        let value = device::stream()?.from_literal(&data)?;
        // SAFETY: as in `flt_record`.
        unsafe { give(out, value) };
        Ok(())
    })
}

/// Waits for a value and copies its elements, as many bytes as there is room for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_download(value: *const Tensor, bytes: *mut u8, len: usize) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`.
        let data = unsafe { &*value }.to_literal()?;
        let from = data.bytes();
        if from.len() != len {
            return unsupported(format!("{len} bytes for a value of {}", from.len()));
        }
        // SAFETY: holds because there is room for `len` bytes, and both are as long.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), bytes, len) };
        Ok(())
    })
}

/// What a view sees of a storage.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_read(
    base: *const Tensor,
    ty: *const FltType,
    strides: *const i64,
    offset: i64,
    out: *mut Tensor,
) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`; there are as many strides as sizes.
        let (ty, strides) = unsafe { (type_of(&*ty)?, list(strides, (*ty).rank as usize)) };
        // SAFETY: as in `flt_record`.
        let value = view::read(unsafe { &*base }, &View { ty: &ty, strides, offset })?;
        // SAFETY: as in `flt_record`.
        unsafe { give(out, value) };
        Ok(())
    })
}

/// A storage after a write through a view.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_write(
    base: *const Tensor,
    ty: *const FltType,
    strides: *const i64,
    offset: i64,
    value: *const Tensor,
    out: *mut Tensor,
) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`; there are as many strides as sizes.
        let (ty, strides) = unsafe { (type_of(&*ty)?, list(strides, (*ty).rank as usize)) };
        // SAFETY: as in `flt_record`.
        let (base, value) = unsafe { (&*base, &*value) };
        let new = view::write(base, &View { ty: &ty, strides, offset }, value)?;
        // SAFETY: as in `flt_record`.
        unsafe { give(out, new) };
        Ok(())
    })
}

/// The value in another element type, and in a shape that it broadcasts to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_convert(
    value: *const Tensor,
    ty: *const FltType,
    out: *mut Tensor,
) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`.
        let (value, ty) = unsafe { (&*value, type_of(&*ty)?) };
        let value = ops::stretched(&cast(value, ty.dtype())?, ty.dims())?;
        // SAFETY: as in `flt_record`.
        unsafe { give(out, value) };
        Ok(())
    })
}

/// Zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_zeros(ty: *const FltType, out: *mut Tensor) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`.
        let ty = unsafe { type_of(&*ty) }?;
        let value = device::stream()?.zeros(ty.dtype(), ty.dims())?;
        // SAFETY: as in `flt_record`.
        unsafe { give(out, value) };
        Ok(())
    })
}

/// Another hold on a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_retain(value: *const Tensor, out: *mut Tensor) {
    // SAFETY: as in `flt_record`.
    let other = unsafe { &*value }.clone();
    // SAFETY: as in `flt_record`.
    unsafe { give(out, other) };
}

/// Gives a hold back.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_release(value: *mut Tensor) {
    // What a drop records must not unwind into C++.
    let dropped = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: holds because the shim releases a value once.
        unsafe { value.drop_in_place() };
    }));
    drop(dropped);
}

/// Ops of two operands that have one type, which is also that of the result: no inference, no arguments. The place in this list is the number
/// at the border.
const QUICK: [fn(&Tensor, &Tensor) -> fuseline::Result<Tensor>; 4] = [Tensor::add, Tensor::sub, Tensor::mul, Tensor::div];

/// The same with a number, which takes the type of the tensor; for floats.
const QUICK_NUMBER: [fn(&Tensor, f64) -> fuseline::Result<Tensor>; 4] = [|a, b| a + b, |a, b| a - b, |a, b| a * b, |a, b| a / b];

/// Records an op of [`QUICK_NUMBER`] on a tensor of floats.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_quick_number(op: usize, a: *const Tensor, b: f64, out: *mut Tensor) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`.
        let value = QUICK_NUMBER[op](unsafe { &*a }, b)?;
        // SAFETY: as in `flt_record`.
        unsafe { give(out, value) };
        Ok(())
    })
}

/// Records an op of [`QUICK`] on operands of one type. Not for `bool`, nor division for integers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_quick(op: usize, a: *const Tensor, b: *const Tensor, out: *mut Tensor) -> Status {
    guarded(|| {
        // SAFETY: as in `flt_record`.
        let (a, b) = unsafe { (&*a, &*b) };
        let value = QUICK[op](a, b)?;
        // SAFETY: as in `flt_record`.
        unsafe { give(out, value) };
        Ok(())
    })
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

/// Fused (0), Strict (1), Debug (2).
#[unsafe(no_mangle)]
pub extern "C" fn flt_set_mode(mode: u32) -> Status {
    guarded(|| {
        let mode = match mode {
            0 => fuseline::Mode::Fused,
            1 => fuseline::Mode::Strict,
            2 => fuseline::Mode::Debug,
            other => return unsupported(format!("mode {other}")),
        };
        device::engine()?.set_mode(mode);
        Ok(())
    })
}

/// The mode.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_mode(mode: *mut u32) -> Status {
    guarded(|| {
        let number = match device::engine()?.mode() {
            fuseline::Mode::Fused => 0,
            fuseline::Mode::Strict => 1,
            fuseline::Mode::Debug => 2,
        };
        // SAFETY: as in `flt_record`.
        unsafe { *mode = number };
        Ok(())
    })
}

/// The plugin to use where nobody says which, as UTF-8. Before the first use of the device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn flt_set_plugin(path: *const u8, len: usize) {
    // SAFETY: as in `flt_record`.
    let path = unsafe { list(path, len) };
    device::set_plugin(std::path::PathBuf::from(String::from_utf8_lossy(path).into_owned()));
}

/// The engine's counters: names and values as `name value` lines, by [`flt_message`].
#[unsafe(no_mangle)]
pub extern "C" fn flt_counters() -> Status {
    guarded(|| {
        let counters = device::engine()?.counters();
        MESSAGE.set(device::counters_text(&counters));
        Ok(())
    })
}
