//! A call of an ATen overload, as lowerings see it.

use std::cell::Cell;
use std::fmt;

use fuseline::fusion::{DType, Scalar, TensorType};
use fuseline::{Stream, Tensor};
use smallvec::SmallVec;

/// An argument, in the order of the schema, which excludes `out=` arguments.
#[derive(Clone, Debug)]
pub enum Arg<'a> {
    /// An optional argument that is missing.
    None,
    /// A contiguous tensor.
    Tensor(&'a Tensor),
    /// A list of tensors, some of which may be missing (indices).
    Tensors(Vec<Option<&'a Tensor>>),
    /// An integer, or a number with an integer value (`Scalar`).
    Int(i64),
    /// A floating point number.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// A complex number: real and imaginary part.
    Complex(f64, f64),
    /// A list of integers.
    Ints(&'a [i64]),
    /// A list of floating point numbers.
    Floats(&'a [f64]),
    /// A text, such as a rounding mode.
    Text(&'a str),
    /// An element type.
    DType(DType),
    /// Random numbers that each call of the graph being recorded draws.
    Draw,
}

/// Why a call has no result.
#[derive(Debug)]
pub enum Fault {
    /// There is no lowering for such arguments, so the CPU computes the call.
    Unsupported(String),
    /// PyTorch reports this error for such arguments.
    Wrong(String),
    /// The engine refused it.
    Engine(fuseline::Error),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Unsupported(why) | Fault::Wrong(why) => f.write_str(why),
            Fault::Engine(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Fault {}

impl From<fuseline::Error> for Fault {
    fn from(error: fuseline::Error) -> Fault {
        Fault::Engine(error)
    }
}

/// The results of a lowering: one value for each result type.
pub type Results = SmallVec<[Tensor; 2]>;
/// The result of a step of a lowering.
pub type Result<T, E = Fault> = std::result::Result<T, E>;
/// Records an overload.
pub type Lower = fn(&Call<'_>) -> Result<Results>;

/// An overload and its lowering.
#[derive(Clone, Copy)]
pub struct Row {
    /// The name, without the namespace if that is `aten`: `add.Tensor`, `relu`,
    /// `fuseline::attention`.
    pub name: &'static str,
    /// The lowering.
    pub lower: Lower,
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Wraps a single result.
pub fn one(tensor: Tensor) -> Result<Results> {
    Ok(SmallVec::from_iter([tensor]))
}

/// Fails because the lowering does not cover a case. The reason explains a fallback to the user.
pub fn unsupported<T>(why: impl Into<String>) -> Result<T> {
    Err(Fault::Unsupported(why.into()))
}

/// Fails because the call is an error on every device.
pub fn wrong<T>(why: impl Into<String>) -> Result<T> {
    Err(Fault::Wrong(why.into()))
}

/// A call.
#[derive(Debug)]
pub struct Call<'a> {
    /// Where its ops are recorded.
    pub stream: &'a Stream,
    /// Its arguments.
    pub args: &'a [Arg<'a>],
    /// Types of its results, as PyTorch infers them.
    pub outs: &'a [TensorType],
    /// Whether the lowering has checked the indices in an argument.
    checks_arguments: Cell<bool>,
}

impl<'a> Call<'a> {
    /// A call.
    #[must_use]
    pub fn new(stream: &'a Stream, args: &'a [Arg<'a>], outs: &'a [TensorType]) -> Call<'a> {
        Call { stream, args, outs, checks_arguments: Cell::new(false) }
    }

    /// Whether the lowering has checked the indices in an argument ([`Call::check_indices`]).
    #[must_use]
    pub fn checks_arguments(&self) -> bool {
        self.checks_arguments.get()
    }

    /// Returns argument `at`. Arguments after the given ones are missing.
    pub fn arg(&self, at: usize) -> &Arg<'a> {
        self.args.get(at).unwrap_or(&Arg::None)
    }

    /// Returns the type of a result.
    ///
    /// # Errors
    /// If there is no such result.
    pub fn out(&self, at: usize) -> Result<&TensorType> {
        match self.outs.get(at) {
            Some(ty) => Ok(ty),
            None => unsupported(format!("there is no result {at}: the call has {}", self.outs.len())),
        }
    }

    fn wrong<T>(&self, at: usize, wanted: &str) -> Result<T> {
        unsupported(format!("argument {at} is {:?}, not {wanted}", self.arg(at)))
    }

    /// Whether an optional argument is missing.
    #[must_use]
    pub fn is_none(&self, at: usize) -> bool {
        matches!(self.arg(at), Arg::None)
    }

    /// Returns a tensor. A number in place of a tensor (`x * 2` has one) becomes a rank-0 tensor of
    /// PyTorch's default type for it.
    ///
    /// # Errors
    /// When it is something else.
    pub fn tensor(&self, at: usize) -> Result<Tensor> {
        match self.arg(at) {
            Arg::Tensor(tensor) => Ok((*tensor).clone()),
            Arg::Int(_) | Arg::Float(_) | Arg::Bool(_) | Arg::Complex(..) => {
                let dtype = match self.arg(at) {
                    Arg::Int(_) => DType::I64,
                    Arg::Bool(_) => DType::Bool,
                    Arg::Complex(..) => DType::C64,
                    _ => DType::F32,
                };
                self.number(at, dtype)
            }
            _ => self.wrong(at, "a tensor"),
        }
    }

    /// Returns a tensor that may be missing.
    ///
    /// # Errors
    /// When it is something else.
    pub fn maybe_tensor(&self, at: usize) -> Result<Option<Tensor>> {
        if self.is_none(at) { Ok(None) } else { self.tensor(at).map(Some) }
    }

    /// Returns a list of tensors, none of which is missing.
    ///
    /// # Errors
    /// When it is something else.
    pub fn tensors(&self, at: usize) -> Result<Vec<Tensor>> {
        let Arg::Tensors(list) = self.arg(at) else { return self.wrong(at, "a list of tensors") };
        match list.iter().map(|tensor| tensor.cloned()).collect() {
            Some(tensors) => Ok(tensors),
            None => self.wrong(at, "a list of tensors without None"),
        }
    }

    /// Returns a list of tensors, some of which may be missing.
    ///
    /// # Errors
    /// When it is something else.
    pub fn maybe_tensors(&self, at: usize) -> Result<Vec<Option<Tensor>>> {
        let Arg::Tensors(list) = self.arg(at) else { return self.wrong(at, "a list of tensors") };
        Ok(list.iter().map(|tensor| tensor.cloned()).collect())
    }

    /// Returns a number as a lifted rank-0 tensor, so that another number does not change the
    /// program.
    ///
    /// # Errors
    /// If the argument is not a number, or is complex and the type is real.
    pub fn number(&self, at: usize, dtype: DType) -> Result<Tensor> {
        if let (Some(part), &Arg::Complex(real, imag)) = (part_of(dtype), self.arg(at)) {
            return Ok(self.constant(real, part)?.with_imag(&self.constant(imag, part)?)?);
        }
        if let Some(part) = part_of(dtype) {
            return Ok(self.number(at, part)?.convert(dtype)?);
        }
        let scalar = match *self.arg(at) {
            Arg::Int(value) => scalar_of(dtype, value as f64, Some(value)),
            Arg::Bool(value) => scalar_of(dtype, f64::from(u8::from(value)), Some(i64::from(value))),
            Arg::Float(value) => scalar_of(dtype, value, None),
            _ => return self.wrong(at, "a number"),
        };
        match scalar {
            Some(scalar) => Ok(self.stream.lift(scalar)),
            None => unsupported(format!("numbers of type {dtype} are not supported")),
        }
    }

    /// Lifts a number that is not an argument.
    ///
    /// # Errors
    /// If PyTorch lacks the type.
    pub fn constant(&self, value: f64, dtype: DType) -> Result<Tensor> {
        if let Some(part) = part_of(dtype) {
            return Ok(self.constant(value, part)?.convert(dtype)?);
        }
        match scalar_of(dtype, value, None) {
            Some(scalar) => Ok(self.stream.lift(scalar)),
            None => unsupported(format!("numbers of type {dtype} are not supported")),
        }
    }

    /// Returns an integer.
    ///
    /// # Errors
    /// When it is something else.
    pub fn int(&self, at: usize) -> Result<i64> {
        match *self.arg(at) {
            Arg::Int(value) => Ok(value),
            Arg::Bool(value) => Ok(i64::from(value)),
            _ => self.wrong(at, "an integer"),
        }
    }

    /// Returns an integer, or a default if it is missing.
    ///
    /// # Errors
    /// When it is something else.
    pub fn int_or(&self, at: usize, otherwise: i64) -> Result<i64> {
        if self.is_none(at) { Ok(otherwise) } else { self.int(at) }
    }

    /// Returns a number that becomes part of the program, because it cannot be lifted.
    ///
    /// # Errors
    /// When it is something else.
    pub fn float(&self, at: usize) -> Result<f64> {
        match *self.arg(at) {
            Arg::Int(value) => Ok(value as f64),
            Arg::Float(value) => Ok(value),
            Arg::Bool(value) => Ok(f64::from(u8::from(value))),
            _ => self.wrong(at, "a number"),
        }
    }

    /// Returns a boolean.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag(&self, at: usize) -> Result<bool> {
        match *self.arg(at) {
            Arg::Bool(value) => Ok(value),
            Arg::Int(value) => Ok(value != 0),
            _ => self.wrong(at, "a boolean"),
        }
    }

    /// Returns a boolean, or a default if it is missing.
    ///
    /// # Errors
    /// When it is something else.
    pub fn flag_or(&self, at: usize, otherwise: bool) -> Result<bool> {
        if self.is_none(at) { Ok(otherwise) } else { self.flag(at) }
    }

    /// Returns a list of integers. A single integer is a list of one; a missing argument is empty.
    ///
    /// # Errors
    /// When it is something else.
    pub fn ints(&self, at: usize) -> Result<SmallVec<[i64; 6]>> {
        match self.arg(at) {
            Arg::Ints(list) => Ok(SmallVec::from_slice(list)),
            Arg::Int(value) => Ok(SmallVec::from_slice(&[*value])),
            Arg::None => Ok(SmallVec::new()),
            _ => self.wrong(at, "a list of integers"),
        }
    }

    /// Checks indices into a dimension of this size, if values are checked.
    ///
    /// # Errors
    /// In debug mode, if one is out of range.
    pub fn check_indices(&self, indices: &Tensor, size: usize, op: &'static str) -> Result<()> {
        if self.stream.checks_indices() {
            self.checks_arguments.set(true);
            indices.check_indices(size, op)?;
        }
        Ok(())
    }

    /// Returns a text, or `None` if it is missing.
    ///
    /// # Errors
    /// When it is something else.
    pub fn text(&self, at: usize) -> Result<Option<&str>> {
        match self.arg(at) {
            Arg::Text(text) => Ok(Some(text)),
            Arg::None => Ok(None),
            _ => self.wrong(at, "a string"),
        }
    }
}

/// Returns the type of the parts of a complex type.
fn part_of(dtype: DType) -> Option<DType> {
    match dtype {
        DType::C64 => Some(DType::F32),
        DType::C128 => Some(DType::F64),
        _ => None,
    }
}

/// Converts a number to a scalar of a type. `whole` is the same number as an integer, if it is one.
/// Returns `None` for complex types.
fn scalar_of(dtype: DType, value: f64, whole: Option<i64>) -> Option<Scalar> {
    Some(match dtype {
        DType::F64 => Scalar::new(value),
        DType::F32 => Scalar::new(value as f32),
        DType::Bool => Scalar::new(whole.map_or(value != 0.0, |whole| whole != 0)),
        DType::I64 => Scalar::new(whole.unwrap_or(value as i64)),
        DType::I32 => Scalar::new(whole.unwrap_or(value as i64) as i32),
        DType::I16 => Scalar::new(whole.unwrap_or(value as i64) as i16),
        DType::I8 => Scalar::new(whole.unwrap_or(value as i64) as i8),
        DType::U8 => Scalar::new(whole.unwrap_or(value as i64) as u8),
        DType::F16 => Scalar::new(half::f16::from_f64(value)),
        DType::BF16 => Scalar::new(half::bf16::from_f64(value)),
        _ => return None,
    })
}
