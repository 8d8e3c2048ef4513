//! Handlers as functions that a plugin calls: XLA's typed FFI.
//!
//! A plugin with the FFI extension has a list of functions that the modules of all its clients may
//! call. Each target of [`fuseline_fusion::handler`] is registered there under its name. All share
//! one function, [`entry`], because the plugin passes no pointer of ours to it. An attribute of the
//! call ([`handler::TARGET_KEY`]) names the target.
//!
//! Layouts follow `xla/pjrt/c/pjrt_c_api_ffi_extension.h` (version 2) and `xla/ffi/api/c_api.h`
//! (FFI API 0.1 to 0.3), whose structs only grow at their ends.
//!
//! Invariants:
//! - FFI-1. A target is registered at most once per plugin and platform.
//! - FFI-2. No struct is read past its declared size, and no list past its length. A call frame
//!   that does not match the header is an error of the call.
//! - FFI-3. Nothing unwinds into the plugin (`callback`), and every error reaches it as one of its
//!   own.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::offset_of;
use std::ptr::NonNull;

use fuseline_fusion::handler::{self, Config, ConfigValue, OperandView, ResultView};
use fuseline_fusion::{DType, TensorType};
use pjrt_sys::{PJRT_Error, PJRT_Extension_Base};

use super::callback::shield;
use super::error::{Code, Error};
use super::plugin::Plugin;
use super::types::{primitive_dtype, tensor_type};

/// Number of the FFI extension.
pub(super) const EXTENSION: u32 = 5;

/// `PJRT_FFI_Register_Handler_Args` of API 0.81.
#[repr(C)]
struct RegisterArgs {
    struct_size: usize,
    target_name: *const c_char,
    target_name_size: usize,
    handler: *mut c_void,
    platform_name: *const c_char,
    platform_name_size: usize,
    traits: c_uint,
}

/// The same in older headers, which also know handlers of another kind. It is longer, so a plugin
/// that expects it rejects the other by its size.
#[repr(C)]
struct OlderRegisterArgs {
    struct_size: usize,
    target_name: *const c_char,
    target_name_size: usize,
    api_version: c_int,
    handler: *mut c_void,
    platform_name: *const c_char,
    platform_name_size: usize,
    traits: c_uint,
}

/// `PJRT_FFI_Extension`.
#[repr(C)]
struct FfiExtension {
    base: PJRT_Extension_Base,
    type_id_register: *const c_void,
    user_data_add: *const c_void,
    register_handler: Option<unsafe extern "C" fn(*mut c_void) -> *mut PJRT_Error>,
}

/// The beginning of every struct of the FFI.
#[repr(C)]
struct Head {
    struct_size: usize,
    extension_start: *const FrameExtension,
}

/// `XLA_FFI_Extension_Base`.
#[repr(C)]
struct FrameExtension {
    struct_size: usize,
    kind: c_int,
    next: *const FrameExtension,
}

/// `XLA_FFI_Metadata_Extension`.
#[repr(C)]
struct MetadataExtension {
    base: FrameExtension,
    metadata: *mut Metadata,
}

/// `XLA_FFI_Extension_Metadata`.
const METADATA: c_int = 1;

/// `XLA_FFI_Api_Version`.
#[repr(C)]
struct Version {
    head: Head,
    major: c_int,
    minor: c_int,
}

/// `XLA_FFI_Metadata` up to the version.
#[repr(C)]
struct Metadata {
    struct_size: usize,
    version: Version,
}

/// `XLA_FFI_Api` up to the one function that is called.
#[repr(C)]
struct FrameApi {
    head: Head,
    version: Version,
    internal: *const c_void,
    error_create: Option<unsafe extern "C" fn(*mut ErrorCreate) -> *mut c_void>,
}

/// `XLA_FFI_Error_Create_Args`.
#[repr(C)]
struct ErrorCreate {
    head: Head,
    message: *const c_char,
    code: c_int,
}

/// `XLA_FFI_Error_Code_INTERNAL`.
const INTERNAL: c_int = 13;

/// `XLA_FFI_Args` and `XLA_FFI_Rets`.
#[repr(C)]
struct Buffers {
    head: Head,
    size: i64,
    kinds: *const c_int,
    items: *const *const BufferArg,
}

/// `XLA_FFI_Buffer`.
#[repr(C)]
struct BufferArg {
    head: Head,
    dtype: c_int,
    data: *mut u8,
    rank: i64,
    dims: *const i64,
}

/// `XLA_FFI_ArgType_BUFFER`, and the same number for results.
const BUFFER: c_int = 1;

/// `XLA_FFI_Attrs`.
#[repr(C)]
struct FrameAttrs {
    head: Head,
    size: i64,
    kinds: *const c_int,
    names: *const *const Span,
    values: *const *const c_void,
}

/// `XLA_FFI_ByteSpan`.
#[repr(C)]
struct Span {
    data: *const u8,
    len: usize,
}

/// `XLA_FFI_Scalar`.
#[repr(C)]
struct ScalarAttr {
    dtype: c_int,
    value: *const u8,
}

/// `XLA_FFI_Array`.
#[repr(C)]
struct ArrayAttr {
    dtype: c_int,
    size: usize,
    data: *const u8,
}

/// `XLA_FFI_AttrType_*`.
const ARRAY: c_int = 1;
const SCALAR: c_int = 3;
const STRING: c_int = 4;

/// `XLA_FFI_CallFrame` up to the attributes.
#[repr(C)]
struct Frame {
    head: Head,
    api: *const FrameApi,
    context: *mut c_void,
    stage: c_int,
    args: Buffers,
    rets: Buffers,
    attrs: FrameAttrs,
}

/// `XLA_FFI_ExecutionStage_EXECUTE`.
const EXECUTE: c_int = 3;

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(RegisterArgs, handler) == 24 && offset_of!(RegisterArgs, traits) == 48);
    assert!(offset_of!(OlderRegisterArgs, handler) == 32 && offset_of!(OlderRegisterArgs, traits) == 56);
    assert!(offset_of!(FfiExtension, register_handler) == 40);
    assert!(offset_of!(MetadataExtension, metadata) == 24);
    assert!(offset_of!(FrameApi, error_create) == 48);
    assert!(size_of::<Buffers>() == 40 && size_of::<FrameAttrs>() == 48);
    assert!(offset_of!(Frame, args) == 40 && offset_of!(Frame, attrs) == 120);
    assert!(offset_of!(BufferArg, dims) == 40);
};

impl Plugin {
    /// Registers a target of [`fuseline_fusion::handler`] with the plugin for a platform, if it is
    /// not registered yet.
    pub(super) fn allow_handler(self, target: &str, platform: &str) -> Result<(), Error> {
        let mut handlers = self.handlers().lock();
        if handlers.iter().any(|(known, place)| known == target && place == platform) {
            return Ok(());
        }
        register(self, target, platform)?;
        handlers.push((target.to_owned(), platform.to_owned()));
        Ok(())
    }
}

/// Registers a target with a plugin for a platform, so that modules may call it.
///
/// # Errors
/// When the plugin has no FFI extension or rejects the name, and on platforms whose memory handlers
/// cannot read.
fn register(plugin: Plugin, target: &str, platform: &str) -> Result<(), Error> {
    const FUNCTION: &str = "PJRT_FFI_Register_Handler";
    if platform != "cpu" {
        let text = format!(
            "{target} is a handler, which runs on the host and needs its operands in host memory, \
             which platform {platform} does not use"
        );
        return Err(Error::layer(Code::Unimplemented, FUNCTION, text));
    }
    let register = plugin.extension(EXTENSION).and_then(|base| {
        // SAFETY: holds because the extensions of a plugin stay for the life of the process and
        // begin so.
        let size = unsafe { at(base) }.struct_size;
        let is_whole = size >= offset_of!(FfiExtension, register_handler) + size_of::<usize>();
        // SAFETY: holds because the struct of this number is that one, and it is as long as it
        // says.
        is_whole.then(|| unsafe { at(base.cast::<FfiExtension>()) })?.register_handler
    });
    let Some(register) = register else {
        let text = format!(
            "{target} is a handler, but {} cannot call handlers: it has no FFI extension to register them",
            plugin.path().display()
        );
        return Err(Error::layer(Code::Unimplemented, FUNCTION, text));
    };
    let (handler, name, place) = (entry as *mut c_void, target.as_ptr().cast(), platform.as_ptr().cast());
    let mut args = RegisterArgs {
        struct_size: offset_of!(RegisterArgs, traits) + size_of::<c_uint>(),
        target_name: name,
        target_name_size: target.len(),
        handler,
        platform_name: place,
        platform_name_size: platform.len(),
        traits: 0,
    };
    let mut older = OlderRegisterArgs {
        struct_size: offset_of!(OlderRegisterArgs, traits) + size_of::<c_uint>(),
        target_name: name,
        target_name_size: target.len(),
        api_version: 1,
        handler,
        platform_name: place,
        platform_name_size: platform.len(),
        traits: 0,
    };
    // SAFETY: holds because the struct is as long as it says, what it points to outlives the call,
    // the function is a typed handler, and a plugin that expects a longer struct reads nothing of
    // this one but its size.
    let refused = unsafe { register((&raw mut args).cast()) };
    if refused.is_null() {
        return Ok(());
    }
    // SAFETY: holds because the function returned this error to us alone.
    drop(unsafe { plugin.api().take_error(refused, FUNCTION) });
    // SAFETY: holds as before, for the longer struct.
    let refused = unsafe { register((&raw mut older).cast()) };
    if refused.is_null() {
        return Ok(());
    }
    // SAFETY: holds because the function returned this error to us alone.
    Err(unsafe { plugin.api().take_error(refused, FUNCTION) })
}

/// Dereferences a pointer of the plugin.
///
/// # Safety
/// It points to a `T` that lives as long as is claimed and that nobody changes.
unsafe fn at<'f, T>(pointer: *const T) -> &'f T {
    // SAFETY: holds because the caller says so.
    unsafe { &*pointer }
}

/// A list of the plugin. An empty list may have no address.
///
/// # Safety
/// There are so many `T` there, which live as long as is claimed and which nobody changes.
unsafe fn list<'f, T>(first: *const T, count: usize) -> &'f [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: holds because the caller says so.
    unsafe { std::slice::from_raw_parts(first, count) }
}

/// The function through which all handlers are called.
///
/// # Safety
/// `frame` is a call frame of the FFI.
unsafe extern "C" fn entry(frame: *const Frame) -> *mut c_void {
    let outcome = shield(|| {
        // SAFETY: holds because the plugin calls with a frame that it keeps until this returns.
        unsafe { answer(frame) }
    });
    let message = match outcome {
        Some(Ok(())) => return std::ptr::null_mut(),
        Some(Err(message)) => message,
        None => "a handler panicked".to_owned(),
    };
    let message = CString::new(message.replace('\0', "")).unwrap_or_default();
    // SAFETY: holds because every frame has the table of the FFI in front of what may not be there.
    let api = unsafe { frame.wrapping_byte_add(offset_of!(Frame, api)).cast::<*const FrameApi>().read() };
    // SAFETY: holds because the table lives as long as the process and has had this function from
    // the first version on.
    let Some(create) = unsafe { at(api) }.error_create else {
        // Without an error the plugin would assume that the results are computed.
        std::process::abort();
    };
    let mut args = ErrorCreate {
        head: Head { struct_size: size_of::<ErrorCreate>(), extension_start: std::ptr::null() },
        message: message.as_ptr(),
        code: INTERNAL,
    };
    // SAFETY: holds because the struct is whole, and the function copies the text.
    unsafe { create(&raw mut args) }
}

/// Answers a call: with the supported version, or with the results.
///
/// # Safety
/// As for [`entry`].
unsafe fn answer(frame: *const Frame) -> Result<(), String> {
    // SAFETY: holds because every frame begins with its head.
    let head = unsafe { at(frame.cast::<Head>()) };
    let mut next = head.extension_start;
    while !next.is_null() {
        // SAFETY: holds because the chain is made of extensions that live as long as the frame.
        let extension = unsafe { at(next) };
        if extension.kind == METADATA {
            // SAFETY: holds because an extension of this kind is that struct.
            let extension = unsafe { at(next.cast::<MetadataExtension>()) };
            // SAFETY: holds because this extension has room for the answer, which nobody else
            // accesses meanwhile.
            let metadata = unsafe { &mut *extension.metadata };
            // Structs only grow at their ends, so the first version that was compared is right for
            // all.
            (metadata.version.major, metadata.version.minor) = (0, 1);
            return Ok(());
        }
        next = extension.next;
    }
    if head.struct_size < size_of::<Frame>() {
        let (size, wanted) = (head.struct_size, size_of::<Frame>());
        return Err(format!("a handler: the call frame has {size} bytes, but this build reads {wanted}"));
    }
    // SAFETY: holds because the frame is as long as the struct and lives until the call returns.
    let frame = unsafe { at(frame) };
    if frame.stage != EXECUTE {
        return Ok(());
    }
    // SAFETY: holds because the attributes are the frame's.
    let (target, config) = unsafe { target_and_config(&frame.attrs) }?;
    let target = target.ok_or("a handler: the call does not name its target")?;
    // SAFETY: holds because the operands are the frame's.
    let operands = unsafe { buffers(&frame.args) }?.into_iter().map(|(ty, data, len)| {
        // SAFETY: holds because an operand has the bytes of its type, which nobody writes during
        // the call.
        OperandView { ty, bytes: unsafe { list(data, len) } }
    });
    let operands: Vec<OperandView<'_>> = operands.collect();
    // SAFETY: holds because the results are the frame's.
    let results = unsafe { buffers(&frame.rets) }?.into_iter().map(|(ty, data, len)| {
        let data = if len == 0 { NonNull::dangling().as_ptr() } else { data };
        // SAFETY: holds because a result has room for the bytes of its type, which nobody else
        // looks at during the call, and XLA gives no operand's memory to a result of a call that
        // does not ask for it.
        ResultView { ty, bytes: unsafe { std::slice::from_raw_parts_mut(data, len) } }
    });
    let mut results: Vec<ResultView<'_>> = results.collect();
    handler::run(&target, &operands, &mut results, &config)
        .map_err(|message| format!("custom_call of {message}"))
}

/// Type, address and length of each buffer of a list.
///
/// # Safety
/// The list is a frame's.
unsafe fn buffers(all: &Buffers) -> Result<Vec<(TensorType, *mut u8, usize)>, String> {
    let count = usize::try_from(all.size).unwrap_or(0);
    // SAFETY: holds because the list is as long as it says.
    let (kinds, items) = (unsafe { list(all.kinds, count) }, unsafe { list(all.items, count) });
    let buffer = |(&kind, &item): (&c_int, &*const BufferArg)| {
        if kind != BUFFER {
            return Err("a handler: an operand or result is not a buffer".to_owned());
        }
        // SAFETY: holds because an item of this kind is a buffer.
        let buffer = unsafe { at(item) };
        // SAFETY: holds because a buffer has as many sizes as it says.
        let dims = unsafe { list(buffer.dims, usize::try_from(buffer.rank).unwrap_or(0)) };
        let dtype = primitive_dtype(buffer.dtype)
            .ok_or_else(|| format!("a handler: XLA's element type {} is not supported", buffer.dtype))?;
        let ty = tensor_type(dtype, dims, "XLA_FFI_Buffer").map_err(|error| error.to_string())?;
        let len = usize::try_from(ty.bytes().0)
            .map_err(|_| "a handler: a buffer is larger than the address space")?;
        if len > 0 && buffer.data.is_null() {
            return Err(format!("a handler: a buffer of {ty} has no address"));
        }
        Ok((ty, buffer.data, len))
    };
    kinds.iter().zip(items).map(buffer).collect()
}

/// The target that the attributes name, and its configuration.
///
/// # Safety
/// The list is a frame's.
unsafe fn target_and_config(attrs: &FrameAttrs) -> Result<(Option<String>, Config), String> {
    let count = usize::try_from(attrs.size).unwrap_or(0);
    // SAFETY: holds because the lists are as long as they say.
    let (kinds, names) = (unsafe { list(attrs.kinds, count) }, unsafe { list(attrs.names, count) });
    // SAFETY: holds for the same reason.
    let values = unsafe { list(attrs.values, count) };
    let (mut target, mut entries) = (None, Vec::new());
    for ((&kind, &name), &value) in kinds.iter().zip(names).zip(values) {
        // SAFETY: holds because a name is a span of the frame's.
        let name = unsafe { text(name) }?;
        let value = match kind {
            // SAFETY: holds because a value of this kind is a span of the frame's.
            STRING => Some(ConfigValue::Text(unsafe { text(value.cast()) }?.into())),
            SCALAR => {
                // SAFETY: holds because a value of this kind is that struct.
                let scalar = unsafe { at(value.cast::<ScalarAttr>()) };
                // SAFETY: holds because the value has the type that it says.
                primitive_dtype(scalar.dtype)
                    .and_then(|dtype| number(dtype, unsafe { list(scalar.value, dtype.size()) }))
            }
            ARRAY => {
                // SAFETY: holds because a value of this kind is that struct.
                let array = unsafe { at(value.cast::<ArrayAttr>()) };
                let is_i64 = primitive_dtype(array.dtype) == Some(DType::I64);
                // SAFETY: holds because the array has as many elements of that type as it says.
                is_i64.then(|| integers(unsafe { list(array.data, array.size * size_of::<i64>()) }))
            }
            _ => None,
        };
        match (name, value) {
            (handler::TARGET_KEY, Some(ConfigValue::Text(text))) => target = Some(text.to_string()),
            (name, Some(value)) => entries.push((name, value)),
            (name, None) => {
                return Err(format!(
                    "a handler: the attribute {name} has a type that handlers do not support"
                ));
            }
        }
    }
    Ok((target, Config::of(entries)))
}

/// # Safety
/// The span is a frame's.
unsafe fn text<'f>(span: *const Span) -> Result<&'f str, String> {
    // SAFETY: holds because the caller says so.
    let span = unsafe { at(span) };
    // SAFETY: holds because a span is as long as it says.
    let bytes = unsafe { list(span.data, span.len) };
    std::str::from_utf8(bytes).map_err(|error| error.to_string())
}

/// A flag or a number from its bytes.
fn number(dtype: DType, bytes: &[u8]) -> Option<ConfigValue> {
    Some(match dtype {
        DType::Bool => (bytes[0] != 0).into(),
        DType::I64 => i64::from_le_bytes(bytes.try_into().ok()?).into(),
        DType::F64 => f64::from_le_bytes(bytes.try_into().ok()?).into(),
        _ => return None,
    })
}

fn integers(bytes: &[u8]) -> ConfigValue {
    let int = |bytes: &[u8]| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | i64::from(byte));
    ConfigValue::Ints(bytes.chunks_exact(size_of::<i64>()).map(int).collect())
}
