//! Handlers: host functions that programs call by name.
//!
//! A [`Handler`] is the target of a `custom_call`. It infers the result types of a call, and
//! computes the results from the bytes of the operands. The registry of handlers is global to the
//! process, because a PJRT plugin has one registry for all its clients. Programs and modules can
//! only call registered targets; any other name is an error.
//!
//! Invariants:
//! - HANDLER-1. A name stands for one handler for the lifetime of the process, so a name in a key
//!   determines the code that runs. The registry only grows.
//! - HANDLER-2. A handler runs on operands and results of the types that its own rule gave. Only
//!   [`run`] runs handlers.
//! - HANDLER-3. A panic of a handler is an error of the call. Results hold what the handler wrote,
//!   and zeros elsewhere.
//! - HANDLER-4. The `bool` results of a handler are checked: bytes other than 0 and 1 are an error,
//!   not a value.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

pub use crate::attr::config::{Config, ConfigFloat, ConfigValue, is_key};
use crate::attr::is_name;
use crate::dtype::Element;
use crate::limits::MAX_NAME;
use crate::literal::{LiteralError, check_range, decoded, encoded};
use crate::shape::{TensorType, listed};

/// Names the target in a module: the plugin calls one function for all handlers, and this attribute
/// selects the handler. No entry of a [`Config`] can have this name ([`is_key`]).
pub const TARGET_KEY: &str = "fuseline.target";

/// A host function that programs can call.
///
/// Device threads call it, several at a time, and each call blocks the region that it is part of. A
/// handler must not wait for anything that depends on its own completion.
pub trait Handler: Send + Sync {
    /// The shape rule of the call: infers the result types from the operand types and the
    /// configuration. It runs when the call is recorded, and must be deterministic.
    ///
    /// # Errors
    /// What is wrong with the call and what would be right. The engine reports it with the call
    /// site.
    fn results(&self, operands: &[TensorType], config: &Config) -> Result<Vec<TensorType>, String>;

    /// Computes the results.
    ///
    /// # Errors
    /// Why the results cannot be computed. All values that depend on them fail too.
    fn run(&self, call: HandlerCall<'_>) -> Result<(), String>;

    /// Whether a call has side effects. Calls with side effects run exactly once each, in program
    /// order, even if nobody uses their results. Other calls may be eliminated, merged and moved.
    fn has_side_effect(&self) -> bool {
        false
    }
}

/// A call, as its handler sees it.
#[derive(Debug)]
pub struct HandlerCall<'a> {
    /// The operands, dense and row-major.
    pub operands: &'a [OperandView<'a>],
    /// The results, all zeros.
    pub results: &'a mut [ResultView<'a>],
    /// The configuration of the call.
    pub config: &'a Config,
}

/// An operand of a call.
#[derive(Clone, Debug)]
pub struct OperandView<'a> {
    /// Its type.
    pub ty: TensorType,
    /// Its elements in row-major order, little-endian; `bool` is one byte.
    pub bytes: &'a [u8],
}

impl OperandView<'_> {
    /// A copy of the elements.
    ///
    /// # Errors
    /// If the operand has another element type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, LiteralError> {
        decoded(&self.ty, self.bytes)
    }
}

/// The destination of one result of a call.
#[derive(Debug)]
pub struct ResultView<'a> {
    /// Its type.
    pub ty: TensorType,
    /// The memory for its elements, in the format of [`OperandView::bytes`].
    pub bytes: &'a mut [u8],
}

impl ResultView<'_> {
    /// Writes all elements.
    ///
    /// # Errors
    /// If the element type or the number of elements differs.
    pub fn write<T: Element>(&mut self, elements: &[T]) -> Result<(), LiteralError> {
        self.bytes.copy_from_slice(&encoded(&self.ty, elements)?);
        Ok(())
    }
}

impl From<LiteralError> for String {
    fn from(error: LiteralError) -> String {
        error.to_string()
    }
}

/// The implementation of a target.
enum Means {
    /// A handler of this process.
    Handler(Box<dyn Handler>),
    /// A custom call that the plugin implements under the same name.
    Plugin(Box<dyn Rule>),
}

/// The shape rule of a target that the plugin implements.
trait Rule: Fn(&[TensorType], &Config) -> Result<Vec<TensorType>, String> + Send + Sync {}

impl<F: Fn(&[TensorType], &Config) -> Result<Vec<TensorType>, String> + Send + Sync> Rule for F {}

/// A target of `custom_call`.
pub struct Target {
    name: Arc<str>,
    means: Means,
}

impl Target {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a call has side effects.
    #[must_use]
    pub fn has_side_effect(&self) -> bool {
        match &self.means {
            Means::Handler(handler) => handler.has_side_effect(),
            Means::Plugin(_) => false,
        }
    }

    /// Whether the plugin implements it.
    #[must_use]
    pub fn is_of_plugin(&self) -> bool {
        matches!(self.means, Means::Plugin(_))
    }

    /// Types of the results of a call.
    ///
    /// # Errors
    /// The error of the rule, or that the rule panicked.
    pub fn results(&self, operands: &[TensorType], config: &Config) -> Result<Vec<TensorType>, String> {
        shielded(|| match &self.means {
            Means::Handler(handler) => handler.results(operands, config),
            Means::Plugin(rule) => rule(operands, config),
        })
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.name)
    }
}

/// Why a target cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetError {
    /// The name is not valid.
    Name(String),
    /// The name is taken.
    Taken(String),
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetError::Name(name) => {
                let shown: String = name.chars().take(MAX_NAME).collect();
                write!(
                    f,
                    "{shown:?} is not a valid handler name: use 1 to {MAX_NAME} ASCII letters, digits and `_ . - / :`"
                )
            }
            TargetError::Taken(name) => {
                write!(
                    f,
                    "the handler name {name} is already taken, and a handler stays registered for \
                     the life of the process; choose another name"
                )
            }
        }
    }
}

impl std::error::Error for TargetError {}

/// The list of targets. Entries are never removed, so readers need no lock.
struct Listed {
    target: Target,
    next: OnceLock<Box<Listed>>,
}

static TARGETS: OnceLock<Box<Listed>> = OnceLock::new();

/// Looks up a target.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    let mut place = &TARGETS;
    while let Some(listed) = place.get() {
        if &*listed.target.name == name {
            return Some(&listed.target);
        }
        place = &listed.next;
    }
    None
}

/// The names of all targets, in the order of registration.
#[must_use]
pub fn target_names() -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut place = &TARGETS;
    while let Some(listed) = place.get() {
        names.push(&*listed.target.name);
        place = &listed.next;
    }
    names
}

fn add(name: &str, means: Means) -> Result<&'static Target, TargetError> {
    if !is_name(name) {
        return Err(TargetError::Name(name.to_owned()));
    }
    let mut new = Box::new(Listed { target: Target { name: name.into(), means }, next: OnceLock::new() });
    let mut place = &TARGETS;
    loop {
        let set = place.set(new);
        let listed = place.get().expect("bug: a slot of the list is neither free nor taken");
        let Err(back) = set else { return Ok(&listed.target) };
        if *listed.target.name == *name {
            return Err(TargetError::Taken(name.to_owned()));
        }
        (new, place) = (back, &listed.next);
    }
}

/// Registers a handler under a name, for all engines of the process, permanently.
///
/// # Errors
/// If the name is not valid ([`is_name`]) or is taken.
pub fn register(name: &str, handler: impl Handler + 'static) -> Result<&'static Target, TargetError> {
    add(name, Means::Handler(Box::new(handler)))
}

/// Allows programs to call a target that the plugin implements, under the plugin's name for it. The
/// target must use the typed FFI and must have no side effects. `rule` infers its result types.
///
/// # Errors
/// As [`register`].
pub fn allow(
    name: &str,
    rule: impl Fn(&[TensorType], &Config) -> Result<Vec<TensorType>, String> + Send + Sync + 'static,
) -> Result<&'static Target, TargetError> {
    add(name, Means::Plugin(Box::new(rule)))
}

/// Runs a handler on operands, which are not changed, and overwrites the results.
///
/// # Errors
/// If there is no such handler, the call violates its rule, the handler fails or panics, or a
/// result holds bytes that are not values of its type. The message begins with the name.
pub fn run(
    name: &str,
    operands: &[OperandView<'_>],
    results: &mut [ResultView<'_>],
    config: &Config,
) -> Result<(), String> {
    run_checked(name, operands, results, config).map_err(|problem| format!("{name}: {problem}"))
}

fn run_checked(
    name: &str,
    operands: &[OperandView<'_>],
    results: &mut [ResultView<'_>],
    config: &Config,
) -> Result<(), String> {
    let target = target(name).ok_or("no handler is registered under this name")?;
    let Means::Handler(handler) = &target.means else {
        return Err("it is a function of a plugin, and this device has no plugin".to_owned());
    };
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
    let wanted = target.results(&types, config)?;
    if !wanted.iter().eq(results.iter().map(|result| &result.ty)) {
        let given = listed(results.iter().map(|result| &result.ty));
        return Err(format!("it returns {} for these operands, not {given}", listed(&wanted)));
    }
    results.iter_mut().for_each(|result| result.bytes.fill(0));
    shielded(|| {
        // The handler gets views of its own, so that it cannot exchange the buffers of the results.
        let mut views: Vec<ResultView<'_>> = results
            .iter_mut()
            .map(|result| ResultView { ty: result.ty.clone(), bytes: &mut *result.bytes })
            .collect();
        handler.run(HandlerCall { operands, results: &mut views, config })
    })?;
    results.iter().enumerate().try_for_each(|(index, result)| {
        check_range(result.ty.dtype(), result.bytes)
            .map_err(|error| format!("it wrote invalid data to result {index}: {error}"))
    })
}

/// Calls user code and turns a panic into an error.
fn shielded<R>(body: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    // Unwind safety: on an error, everything that the body writes to is discarded.
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(panic.as_ref()))))
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
