//! A call under inspection by the rules of its op, and the checks that they are written with.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::OpDef;
use crate::attr::{AttrText, AttrView, Attrs};
use crate::dtype::DTypeSet;
use crate::error::{OpError, OpErrorKind};
use crate::ir::{Body, Results};
use crate::shape::{Shape, ShapeError, TensorType};

/// The input of a rule: a call whose arity and attribute kinds fit the op's row.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The op's row.
    pub def: &'static OpDef,
    /// Types of the operands.
    pub operands: &'a [TensorType],
    /// The attributes, in schema order.
    pub attrs: &'a Attrs,
    /// The bodies.
    pub bodies: &'a [Arc<Body>],
}

impl<'a> Call<'a> {
    /// Type of operand `index`.
    #[inline]
    #[must_use]
    pub fn operand(&self, index: usize) -> &'a TensorType {
        &self.operands[index]
    }

    /// Typed access to the attributes.
    #[inline]
    #[must_use]
    pub fn attr(&self) -> AttrView<'a> {
        self.attrs.view()
    }

    /// The value of attribute `index` as text, for messages.
    #[must_use]
    pub fn attr_text(&self, index: usize) -> AttrText<'a> {
        self.def.attrs[index].kind.text(&self.attrs.values()[index])
    }

    /// Name of operand `index`, for messages.
    #[must_use]
    pub fn name(&self, index: usize) -> String {
        self.def.operand_name(index, self.operands.len())
    }

    /// An error of this op.
    #[must_use]
    pub fn error(&self, fault: OpErrorKind, given: impl Into<String>, rule: impl Into<String>) -> OpError {
        OpError::new(self.def.name, fault, given, rule)
    }

    /// A shape error of this op.
    #[must_use]
    pub fn shape_error(&self, given: impl Into<String>, rule: impl Into<String>) -> OpError {
        self.error(OpErrorKind::Shape, given, rule)
    }

    /// An attribute error of this op.
    #[must_use]
    pub fn attr_error(&self, given: impl Into<String>, rule: impl Into<String>) -> OpError {
        self.error(OpErrorKind::Attribute, given, rule)
    }

    /// Checks the element type of operand `index`.
    ///
    /// # Errors
    /// If it is not in `set`.
    pub fn dtype_in(&self, index: usize, set: DTypeSet) -> Result<(), OpError> {
        let dtype = self.operand(index).dtype();
        if set.contains(dtype) {
            return Ok(());
        }
        let error = self.error(
            OpErrorKind::DType,
            format!("{} is {}", self.name(index), self.operand(index)),
            format!("its element type must be {set}"),
        );
        Err(if set.contains(crate::DType::F32) && !dtype.is_float() {
            error.hint("convert it to a float first")
        } else {
            error
        })
    }

    /// Checks that operand `index` has the element type of operand `of`.
    ///
    /// # Errors
    /// If it has another one.
    pub fn same_dtype(&self, index: usize, of: usize) -> Result<(), OpError> {
        let (given, wanted) = (self.operand(index).dtype(), self.operand(of).dtype());
        if given == wanted {
            return Ok(());
        }
        Err(self
            .error(
                OpErrorKind::DType,
                format!("{} is {given} and {} is {wanted}", self.name(index), self.name(of)),
                "they must have the same element type",
            )
            .hint(format!("convert {} to {wanted}", self.name(index))))
    }

    /// Checks that operand `index` has the shape of operand `of`.
    ///
    /// # Errors
    /// If it has another one.
    pub fn same_shape(&self, index: usize, of: usize) -> Result<(), OpError> {
        let (given, wanted) = (self.operand(index).shape(), self.operand(of).shape());
        if given == wanted {
            return Ok(());
        }
        let error = self.shape_error(
            format!("{} has shape {given} and {} has shape {wanted}", self.name(index), self.name(of)),
            "they must have the same shape",
        );
        Err(if broadcasts(given, wanted) {
            error.hint(format!("broadcast {} to {wanted} first", self.name(index)))
        } else if broadcasts(wanted, given) {
            error.hint(format!("broadcast {} to {given} first", self.name(of)))
        } else {
            error
        })
    }

    /// Checks that operand `index` is a scalar.
    ///
    /// # Errors
    /// If it has dimensions.
    pub fn scalar(&self, index: usize) -> Result<(), OpError> {
        if self.operand(index).rank() == 0 {
            return Ok(());
        }
        Err(self.shape_error(
            format!("{} has shape {}", self.name(index), self.operand(index).shape()),
            "it must be a scalar",
        ))
    }

    /// Checks a dimension number of an attribute; returns it as an index below `rank`.
    ///
    /// # Errors
    /// If it is negative or too large.
    pub fn axis(&self, attr: &str, value: i64, rank: usize) -> Result<usize, OpError> {
        match usize::try_from(value) {
            Ok(axis) if axis < rank => Ok(axis),
            _ => {
                let error = self.attr_error(
                    format!("{attr} has dimension {value} of a tensor of rank {rank}"),
                    if rank == 0 {
                        "a scalar has no dimensions".to_owned()
                    } else {
                        format!("dimensions are 0 to {}", rank - 1)
                    },
                );
                Err(if value < 0 && value >= -(rank as i64) {
                    error.hint(format!("did you mean {}?", value + rank as i64))
                } else {
                    error
                })
            }
        }
    }

    /// Checks a list of distinct dimension numbers below `rank`.
    ///
    /// # Errors
    /// If one is out of range or repeated.
    pub fn axes(&self, attr: &str, values: &[i64], rank: usize) -> Result<SmallVec<[usize; 6]>, OpError> {
        let mut axes = SmallVec::new();
        for &value in values {
            let axis = self.axis(attr, value, rank)?;
            if axes.contains(&axis) {
                return Err(self.attr_error(
                    format!("{attr} is {values:?}"),
                    format!("dimension {axis} must not appear twice"),
                ));
            }
            axes.push(axis);
        }
        Ok(axes)
    }

    /// Checks the length of a list attribute.
    ///
    /// # Errors
    /// If it is not `wanted`. `per` names what the entries belong to.
    pub fn list_len(&self, attr: &str, len: usize, wanted: usize, per: &str) -> Result<(), OpError> {
        if len == wanted {
            return Ok(());
        }
        Err(self.attr_error(
            format!("{attr} has {len} entries"),
            format!("it must have one per {per}, which is {wanted}"),
        ))
    }

    /// A result type from computed sizes.
    ///
    /// # Errors
    /// If the sizes are not a shape.
    pub fn ty(&self, dtype: crate::DType, dims: &[u64]) -> Result<TensorType, OpError> {
        TensorType::of(dtype, dims).map_err(|error| self.size_error(&error))
    }

    /// A shape error as an error of this op.
    #[must_use]
    pub fn size_error(&self, error: &ShapeError) -> OpError {
        let fault = match error {
            ShapeError::Rank { .. } => OpErrorKind::Limit,
            ShapeError::Overflow { .. } => OpErrorKind::Overflow,
        };
        self.error(fault, "the result would be too large", error.to_string())
    }

    /// Name of body `index`, for messages.
    #[must_use]
    pub fn body_name(&self, index: usize) -> String {
        self.def.bodies.name(index)
    }

    /// Checks that body `index` takes values of the given types. For the message, `what` describes
    /// each value and `rule` the reason.
    ///
    /// # Errors
    /// Names the first parameter that differs.
    pub fn body_takes(
        &self,
        index: usize,
        wanted: &[TensorType],
        what: impl Fn(usize) -> String,
        rule: &str,
    ) -> Result<(), OpError> {
        let (name, params) = (self.body_name(index), self.bodies[index].graph().params());
        if params.len() != wanted.len() {
            return Err(self
                .error(
                    OpErrorKind::Body,
                    format!("{name} takes {} values", params.len()),
                    format!("it must take {}, {rule}: {wanted:?}", wanted.len()),
                )
                .hint("a body can use only its parameters"));
        }
        match params.iter().zip(wanted).position(|(param, wanted)| param != wanted) {
            None => Ok(()),
            Some(place) => Err(self.error(
                OpErrorKind::Body,
                format!(
                    "parameter {place} of {name} is {}, but it corresponds to {}, which is {}",
                    params[place],
                    what(place),
                    wanted[place]
                ),
                format!("they must have the same type, {rule}"),
            )),
        }
    }

    /// Checks that body `index` returns values of the given types. For the message, `what`
    /// describes each value and `rule` the reason.
    ///
    /// # Errors
    /// Names the first value that differs, and the op that would fix it if there is one.
    pub fn body_returns(
        &self,
        index: usize,
        wanted: &[TensorType],
        what: impl Fn(usize) -> String,
        rule: &str,
    ) -> Result<(), OpError> {
        let (name, mut returns) = (self.body_name(index), self.bodies[index].return_types());
        if returns.len() != wanted.len() {
            let found: Vec<&TensorType> = returns.collect();
            return Err(self.error(
                OpErrorKind::Body,
                format!("{name} returns {} values, {found:?}", found.len()),
                format!("it must return {}, {rule}: {wanted:?}", wanted.len()),
            ));
        }
        let differing = (0..).zip(returns.by_ref().zip(wanted)).find(|(_, (found, wanted))| found != wanted);
        let Some((place, (found, wanted))) = differing else { return Ok(()) };
        let error = self.error(
            OpErrorKind::Body,
            format!("{name} returns {found} for {}, which is {wanted}", what(place)),
            rule,
        );
        Err(match remedy(found, wanted) {
            Some(remedy) => error.hint(format!("{remedy} before returning it")),
            None => error,
        })
    }

    /// Checks that body `index` takes and returns the given types.
    ///
    /// # Errors
    /// If it has another signature.
    pub fn body_type(
        &self,
        index: usize,
        params: &[TensorType],
        returns: &[TensorType],
    ) -> Result<(), OpError> {
        let body = &self.bodies[index];
        if body.graph().params() == params && body.return_types().eq(returns.iter()) {
            return Ok(());
        }
        let found: Vec<&TensorType> = body.return_types().collect();
        Err(self.error(
            OpErrorKind::Body,
            format!("{} takes {:?} and returns {found:?}", self.body_name(index), body.graph().params()),
            format!("it must take {params:?} and return {returns:?}"),
        ))
    }
}

/// One result.
pub(in crate::op) fn one(ty: TensorType) -> Results {
    smallvec![ty]
}

/// The op that turns a value of type `from` into one of type `to`, as advice; `None` if that takes
/// more than one op.
fn remedy(from: &TensorType, to: &TensorType) -> Option<String> {
    if from.shape() == to.shape() {
        Some(format!("convert it to {}", to.dtype()))
    } else if from.dtype() != to.dtype() {
        None
    } else if from.elems() == to.elems() {
        Some(format!("reshape it to {}", to.shape()))
    } else {
        broadcasts(from.shape(), to.shape()).then(|| format!("broadcast it to {}", to.shape()))
    }
}

/// Whether a tensor of shape `from` broadcasts to `to` under NumPy's rule.
fn broadcasts(from: &Shape, to: &Shape) -> bool {
    from.rank() <= to.rank()
        && from.dims().iter().rev().zip(to.dims().iter().rev()).all(|(&a, &b)| a == b || a == 1)
}
