//! Handlers: functions of the host that programs call, by name.
//!
//! A [`Handler`] is what `custom_call` calls: it says which results a call has, and computes them from the bytes of the
//! operands. Handlers are known to the whole process, like the handlers of a PJRT plugin, which has one list of them for
//! all its clients. Only what is in that list can be called: a program or a module that names anything else is refused.
//!
//! Invariants:
//! - H1. A name stands for one handler for the life of the process, so a name in a key says which code runs. The list only grows.
//! - H2. A handler is run with operands and results of the types that its own rule gave; [`run`] is the only place that does.
//! - H3. A panic of a handler is an error of the call. Results hold what the handler wrote, and zeros where it wrote nothing.
//! - H4. What a handler leaves in a `bool` is checked: other bytes than 0 and 1 are an error, not a value.

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

/// What a module says to the one function that a plugin calls all handlers through: which of them is meant. No entry of a
/// [`Config`] has this name ([`is_key`]).
pub const TARGET_KEY: &str = "fuseline.target";

/// A function of the host that programs can call.
///
/// Calls come from threads of the device, several at a time, and hold up the region they are part of. A handler must not wait
/// for what waits for it.
pub trait Handler: Send + Sync {
    /// Types of the results of a call, from those of its operands and what it says besides. This is the call's shape rule: it
    /// runs where the call is recorded, and must always give the same answer.
    ///
    /// # Errors
    /// What is wrong with the call and what would be right; it is told with the call's site.
    fn results(&self, operands: &[TensorType], config: &Config) -> Result<Vec<TensorType>, String>;

    /// Computes the results.
    ///
    /// # Errors
    /// Why it cannot. Everything that is computed from the results fails with it.
    fn run(&self, call: HandlerCall<'_>) -> Result<(), String>;

    /// Whether a call does more than computing its results. Such calls happen once each, in the order of the program, also
    /// when nobody uses their results; others may be left out, merged and moved.
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
    /// What the call says besides.
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
    /// When they are of another type.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, LiteralError> {
        decoded(&self.ty, self.bytes)
    }
}

/// Where a result of a call goes.
#[derive(Debug)]
pub struct ResultView<'a> {
    /// Its type.
    pub ty: TensorType,
    /// Room for its elements, as of [`OperandView::bytes`].
    pub bytes: &'a mut [u8],
}

impl ResultView<'_> {
    /// Writes all elements.
    ///
    /// # Errors
    /// When they are of another type, or more or fewer than there are.
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

/// Who computes what a target stands for.
enum Means {
    /// A handler of ours.
    Handler(Box<dyn Handler>),
    /// The plugin, which knows the target by its name.
    Plugin(Box<dyn Rule>),
}

/// The shape rule of a target that a plugin has.
trait Rule: Fn(&[TensorType], &Config) -> Result<Vec<TensorType>, String> + Send + Sync {}

impl<F: Fn(&[TensorType], &Config) -> Result<Vec<TensorType>, String> + Send + Sync> Rule for F {}

/// Something that `custom_call` may call.
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

    /// Whether a call of it does more than computing its results.
    #[must_use]
    pub fn has_side_effect(&self) -> bool {
        match &self.means {
            Means::Handler(handler) => handler.has_side_effect(),
            Means::Plugin(_) => false,
        }
    }

    /// Whether the plugin computes it.
    #[must_use]
    pub fn is_of_plugin(&self) -> bool {
        matches!(self.means, Means::Plugin(_))
    }

    /// Types of the results of a call.
    ///
    /// # Errors
    /// What the rule says is wrong, or that it panicked.
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

/// Why a target cannot be made known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetError {
    /// The name is none.
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
                    "{shown:?} is no name for a handler: that is 1 to {MAX_NAME} ASCII letters, digits and `_ . - / :`"
                )
            }
            TargetError::Taken(name) => {
                write!(
                    f,
                    "{name} is a handler already, and stays what it is while the process lives; give this one another name"
                )
            }
        }
    }
}

impl std::error::Error for TargetError {}

/// The targets, each with the rest of the list. Nothing is ever taken out, so readers need no lock.
struct Listed {
    target: Target,
    next: OnceLock<Box<Listed>>,
}

static TARGETS: OnceLock<Box<Listed>> = OnceLock::new();

/// The target of a name.
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

/// The names of all targets, in the order in which they became known.
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
        let listed = place.get().expect("bug: a place of the list that is neither free nor taken");
        let Err(back) = set else { return Ok(&listed.target) };
        if *listed.target.name == *name {
            return Err(TargetError::Taken(name.to_owned()));
        }
        (new, place) = (back, &listed.next);
    }
}

/// Makes a handler known under a name, for all engines of the process, for good.
///
/// # Errors
/// When the name is none ([`is_name`]), or is taken.
pub fn register(name: &str, handler: impl Handler + 'static) -> Result<&'static Target, TargetError> {
    add(name, Means::Handler(Box::new(handler)))
}

/// Allows programs to call a target that the plugin itself has, by the plugin's name for it. It must be of the typed FFI and
/// do nothing but compute its results, whose types `rule` tells.
///
/// # Errors
/// As [`register`].
pub fn allow(
    name: &str,
    rule: impl Fn(&[TensorType], &Config) -> Result<Vec<TensorType>, String> + Send + Sync + 'static,
) -> Result<&'static Target, TargetError> {
    add(name, Means::Plugin(Box::new(rule)))
}

/// Runs the handler of a name on operands, given as they are, into results, which are overwritten.
///
/// # Errors
/// When there is no such handler, the call does not fit its rule, the handler fails or panics, or leaves in a result what is
/// no value of its type. The message begins with the name.
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
        return Err("it is a function of a plugin, which this device does not have".to_owned());
    };
    let types: Vec<TensorType> = operands.iter().map(|operand| operand.ty.clone()).collect();
    let wanted = target.results(&types, config)?;
    if !wanted.iter().eq(results.iter().map(|result| &result.ty)) {
        let given = listed(results.iter().map(|result| &result.ty));
        return Err(format!("it gives {} for these operands, not {given}", listed(&wanted)));
    }
    results.iter_mut().for_each(|result| result.bytes.fill(0));
    shielded(|| {
        // The views are the handler's own, so that it cannot exchange them for others.
        let mut views: Vec<ResultView<'_>> = results
            .iter_mut()
            .map(|result| ResultView { ty: result.ty.clone(), bytes: &mut *result.bytes })
            .collect();
        handler.run(HandlerCall { operands, results: &mut views, config })
    })?;
    results.iter().enumerate().try_for_each(|(index, result)| {
        check_range(result.ty.dtype(), result.bytes)
            .map_err(|error| format!("it left result {index} wrong: {error}"))
    })
}

/// What code of the user returns; a panic is an error.
fn shielded<R>(body: impl FnOnce() -> Result<R, String>) -> Result<R, String> {
    // Unwind safety: what the body writes to is given up when it fails.
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|panic| Err(format!("it panicked: {}", said(panic.as_ref()))))
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
