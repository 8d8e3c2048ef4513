//! User-defined ops: named functions, and host functions.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::sync::Arc;

use engine::embed::StreamHandle;
use engine::handler::{Config, Handler, HandlerCall};
use engine::{CustomOp, TensorType};

use crate::attrs::{Entries, fuseline_attr};
use crate::callback::{User, fuseline_free_fn};
use crate::error::{Fault, Result, fuseline_error, guard};
use crate::host::fuseline_room;
use crate::raw::{given, list, text};
use crate::record::{Places, fuseline_body};
use crate::session::{fuseline_session, fuseline_stream, fuseline_value, handles, session};
use crate::site::{fuseline_site, site};
use crate::types::{FUSELINE_MAX_RANK, fuseline_tensor, fuseline_type};

/// Registers the main function of a StableHLO module, given as text, as a named op. It fuses with
/// its neighbours like any other op.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_op_from_stablehlo(
    session: Option<&fuseline_session>,
    name: *const c_char,
    module: *const c_char,
) -> *mut fuseline_error {
    guard("fuseline_op_from_stablehlo", || {
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let (name, module) = unsafe { (text(name, "name")?, text(module, "module")?) };
        let op = CustomOp::from_stablehlo(name, module)
            .map_err(|error| Fault::bad_op(format!("{name}: {error}")))?;
        Ok(self::session(session)?.register_op(op)?)
    })
}

/// Registers a function from fuseline_body_end as a named op.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_op_from_body(
    session: Option<&fuseline_session>,
    name: *const c_char,
    body: Option<&fuseline_body>,
) -> *mut fuseline_error {
    guard("fuseline_op_from_body", || {
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let name = unsafe { text(name, "name") }?;
        let body: Arc<engine::Body> = given(body, "body")?.0.clone();
        let op = CustomOp::new(name, body).map_err(|error| Fault::bad_op(format!("{name}: {error}")))?;
        Ok(self::session(session)?.register_op(op)?)
    })
}

/// Records a call of a named op. Results are as for fuseline_record.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_op_call(
    session: Option<&fuseline_session>,
    stream: fuseline_stream,
    name: *const c_char,
    operands: *const fuseline_value,
    num_operands: usize,
    site: Option<&fuseline_site>,
    results: *mut fuseline_value,
    types: *mut fuseline_type,
    capacity: usize,
    count: Option<&mut MaybeUninit<usize>>,
) -> *mut fuseline_error {
    guard("fuseline_op_call", || {
        let session = self::session(session)?;
        // SAFETY: the caller passes a text and that many elements, or null (see the header).
        let (name, operands) = unsafe { (text(name, "name")?, list(operands, num_operands, "operands")?) };
        // SAFETY: the caller passes null or room for `capacity` elements (see the header).
        let places = unsafe { Places::of(results, types, capacity, count) }?;
        let made =
            session.call_op(StreamHandle::from_raw(stream), name, handles(operands), self::site(site))?;
        places.fill(session, &made)
    })
}

/// Receives the reason why a handler fails.
pub struct fuseline_reason(Option<String>);

/// Sets the reason. The text is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_reason_set(reason: Option<&mut fuseline_reason>, why: *const c_char) {
    crate::error::guarded((), || {
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let why = unsafe { text(why, "why") }.unwrap_or("the reason is not UTF-8");
        if let Some(reason) = reason {
            reason.0 = Some(why.to_owned());
        }
    });
}

/// A host function that programs call with the op custom_call. Its functions are called on any
/// thread, possibly concurrently, and must not wait for the engine.
#[repr(C)]
pub struct fuseline_handler {
    /// Size of this structure, as the caller knows it.
    pub struct_size: usize,
    /// Infers the result types of a call from the types of its operands and its configuration.
    /// Writes at most `capacity` types and returns their number, or sets a reason. It must be
    /// deterministic.
    pub results: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            operands: *const fuseline_type,
            num_operands: usize,
            config: *const fuseline_attr,
            num_config: usize,
            results: *mut fuseline_type,
            capacity: usize,
            reason: *mut fuseline_reason,
        ) -> usize,
    >,
    /// Computes the results into the given memory, which is zeroed, or sets a reason.
    pub run: Option<
        unsafe extern "C" fn(
            user: *mut c_void,
            operands: *const fuseline_tensor,
            num_operands: usize,
            config: *const fuseline_attr,
            num_config: usize,
            results: *const fuseline_room,
            num_results: usize,
            reason: *mut fuseline_reason,
        ),
    >,
    /// Nonzero if a call has side effects. Then each call happens once, in program order.
    pub has_side_effect: u32,
    /// The user data of both functions. It is never freed: a handler lives as long as the process.
    pub user: *mut c_void,
}

/// The largest number of results of a handler call.
pub const FUSELINE_MAX_HANDLER_RESULTS: usize = 64;

struct Foreign {
    results: unsafe extern "C" fn(
        *mut c_void,
        *const fuseline_type,
        usize,
        *const fuseline_attr,
        usize,
        *mut fuseline_type,
        usize,
        *mut fuseline_reason,
    ) -> usize,
    run: unsafe extern "C" fn(
        *mut c_void,
        *const fuseline_tensor,
        usize,
        *const fuseline_attr,
        usize,
        *const fuseline_room,
        usize,
        *mut fuseline_reason,
    ),
    has_side_effect: bool,
    user: User,
}

impl Handler for Foreign {
    fn results(&self, operands: &[TensorType], config: &Config) -> Result<Vec<TensorType>, String> {
        let operands: Vec<fuseline_type> = operands.iter().map(fuseline_type::of).collect();
        let config = Entries::of(config);
        let none = fuseline_type { dtype: 0, rank: 0, dims: [0; FUSELINE_MAX_RANK] };
        let mut results = vec![none; FUSELINE_MAX_HANDLER_RESULTS];
        let mut reason = fuseline_reason(None);
        // SAFETY: the caller passed a function that accepts `user`, which is never freed.
        let count = unsafe {
            (self.results)(
                self.user.data(),
                operands.as_ptr(),
                operands.len(),
                config.get().as_ptr(),
                config.get().len(),
                results.as_mut_ptr(),
                results.len(),
                &raw mut reason,
            )
        };
        if let Some(why) = reason.0 {
            return Err(why);
        }
        let results = results.get(..count).ok_or_else(|| {
            format!("it has {count} results, but at most {FUSELINE_MAX_HANDLER_RESULTS} are allowed")
        })?;
        let read = |ty: &fuseline_type| ty.read().map_err(|fault| fuseline_error::from(fault).text());
        results.iter().map(read).collect()
    }

    fn run(&self, call: HandlerCall<'_>) -> Result<(), String> {
        let tensor = |view: &engine::handler::OperandView<'_>| fuseline_tensor {
            r#type: fuseline_type::of(&view.ty),
            data: view.bytes.as_ptr(),
            size: view.bytes.len(),
        };
        let operands: Vec<fuseline_tensor> = call.operands.iter().map(tensor).collect();
        let config = Entries::of(call.config);
        let room = |view: &mut engine::handler::ResultView<'_>| fuseline_room {
            data: view.bytes.as_mut_ptr(),
            size: view.bytes.len(),
        };
        let rooms: Vec<fuseline_room> = call.results.iter_mut().map(room).collect();
        let mut reason = fuseline_reason(None);
        // SAFETY: the caller passed a function that accepts `user`, which is never freed.
        unsafe {
            (self.run)(
                self.user.data(),
                operands.as_ptr(),
                operands.len(),
                config.get().as_ptr(),
                config.get().len(),
                rooms.as_ptr(),
                rooms.len(),
                &raw mut reason,
            );
        }
        reason.0.map_or(Ok(()), Err)
    }

    fn has_side_effect(&self) -> bool {
        self.has_side_effect
    }
}

/// Registers a host function under a name, permanently and for all engines of the process. Record
/// custom_call with the attribute call_target_name to call it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_handler_register(
    name: *const c_char,
    handler: Option<&fuseline_handler>,
) -> *mut fuseline_error {
    guard("fuseline_handler_register", || {
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let name = unsafe { text(name, "name") }?;
        let handler = given(handler, "handler")?;
        if handler.struct_size < size_of::<fuseline_handler>() {
            let (given, wanted) = (handler.struct_size, size_of::<fuseline_handler>());
            return Err(Fault::invalid(format!(
                "handler.struct_size is {given}, but must be at least {wanted}"
            )));
        }
        let no_free: fuseline_free_fn = None;
        let foreign = Foreign {
            results: given(handler.results, "handler.results")?,
            run: given(handler.run, "handler.run")?,
            has_side_effect: handler.has_side_effect != 0,
            user: User::new(handler.user, no_free),
        };
        engine::handler::register(name, foreign).map_err(|error| Fault::invalid(error.to_string()))?;
        Ok(())
    })
}
