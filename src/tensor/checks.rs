//! Records the ops that compute the flag of a check (`runtime::stream::checks`).

use std::borrow::Cow;

use fuseline_fusion::op::attrs;
use fuseline_fusion::region::Mode;
use fuseline_fusion::{Attrs, DType, DTypeClass, Literal, OpCode, OpError, OpErrorKind, Scalar, Site};
use fuseline_runtime::internals::{Expected, Rule, StreamShared, checks, is_unchecked};
use fuseline_runtime::{Error, Result};
use smallvec::smallvec;

use super::{Tensor, here};
use crate::stream::Stream;

/// Whether methods check indices on a stream now.
#[inline]
fn is_on(stream: &StreamShared) -> bool {
    let is_asked =
        stream.engine().config().check_indices || (!stream.is_fused() && stream.mode() == Mode::Debug);
    is_asked && !is_unchecked()
}

impl Stream {
    /// Whether methods check indices of ops that this thread records now: in Debug mode, and with
    /// [`EngineConfig::check_indices`](crate::EngineConfig::check_indices), except within
    /// [`unchecked`](crate::unchecked).
    #[must_use]
    pub fn checks_indices(&self) -> bool {
        is_on(self.shared())
    }
}

impl Tensor {
    /// Checks that the elements, integers, are valid indices of `size` elements: from 0 up to, not
    /// including, `size`. The error names `op`. In Debug mode, and if the host has the elements,
    /// this call returns the error. Otherwise the next read of a later value does
    /// ([`EngineConfig::check_indices`](crate::EngineConfig::check_indices)). Values that were
    /// checked already are not checked again. Nothing is checked in the body of a loop or branch.
    ///
    /// Methods that take indices call this themselves if checks are on.
    ///
    /// # Errors
    /// When an element is found to be out of range, or the elements are not integers.
    #[track_caller]
    pub fn check_indices(&self, size: usize, op: &'static str) -> Result<()> {
        self.check_below(size, false, op, &here())
    }

    /// As [`Tensor::check_indices`], for indices that may have counted from the end and to which
    /// `size` was added in that case.
    ///
    /// # Errors
    /// As [`Tensor::check_indices`].
    #[track_caller]
    pub fn check_wrapped_indices(&self, size: usize, op: &'static str) -> Result<()> {
        self.check_below(size, true, op, &here())
    }

    /// Checks that all elements, of type `bool`, are true. `rule` is the message if one is not.
    /// Otherwise as [`Tensor::check_indices`].
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// let rates = engine.tensor(&[0.5f32, 1.5], &[2])?;
    /// rates.less_equal(&engine.scalar(1.0f32))?.check_all("noise", "a rate is above 1")?;
    /// let error = (&rates * 2.0)?.to_vec::<f32>().unwrap_err();
    /// assert!(error.to_string().contains("a rate is above 1"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When an element is found to be false, or the elements are not bools.
    #[track_caller]
    pub fn check_all(&self, op: &'static str, rule: impl Into<Cow<'static, str>>) -> Result<()> {
        let site = here();
        if self.dtype() != DType::Bool {
            let given = format!("{} was given", self.ty());
            let error = OpError::new("check_all", OpErrorKind::DType, given, "the elements must be bool");
            return Err(Tensor::refuse(error, site));
        }
        let expected = Expected { op, site: site.clone(), rule: Rule::True(rule.into()) };
        if self.ty().elems().0 == 0 || self.has_no_check() {
            return Ok(());
        }
        if let Some(scalar) = self.cell().as_scalar() {
            let flag = u64::from(scalar.to_literal().bytes() == [0]);
            return expected
                .broken(flag)
                .map_or(Ok(()), |what| Err(Error::failed_check(op, site, what, false)));
        }
        let is_broken = self.record(OpCode::Not, Attrs::none(), &[self], site.clone())?;
        let flags = is_broken.as_dtype(DType::U64, self, &site)?.largest(&site)?;
        checks::expect(flags.into_handle(), smallvec![expected])
    }

    /// [`Tensor::check_indices`] for a method, if checks are on. The method's own op rejects
    /// elements that are not integers.
    #[inline]
    pub(crate) fn check_where_asked(&self, size: usize, op: &'static str, site: &Site) -> Result<()> {
        match is_on(self.stream()) && self.dtype().is_int() {
            true => self.check_below(size, false, op, site),
            false => Ok(()),
        }
    }

    /// The same for class labels, one of which may be ignored.
    pub(crate) fn check_labels_where_asked(
        &self,
        classes: usize,
        ignored: Option<Scalar>,
        op: &'static str,
        site: &Site,
    ) -> Result<()> {
        let Some(ignored) = ignored.filter(|_| is_on(self.stream()) && self.dtype().is_int()) else {
            return self.check_where_asked(classes, op, site);
        };
        let is_none = self.equal(&self.constant_like(ignored.to_literal(), site)?)?;
        let first = self.constant_like(Literal::of_f64(self.dtype(), 0.0), site)?;
        is_none.select(&first, self)?.check_below(classes, false, op, site)
    }

    /// Whether the tensor belongs to a body in which nothing is checked: of a loop, branch or
    /// function of elements.
    fn has_no_check(&self) -> bool {
        self.cell().place().is_some_and(|place| !place.trace().is_function())
    }

    #[inline(never)]
    fn check_below(&self, size: usize, is_wrapped: bool, op: &'static str, site: &Site) -> Result<()> {
        let is_signed = match self.dtype().class() {
            DTypeClass::Signed => true,
            DTypeClass::Unsigned => false,
            _ => {
                let given = format!("{} was given", self.ty());
                let error = OpError::new(op, OpErrorKind::DType, given, "indices must be integers");
                return Err(Tensor::refuse(error, site.clone()));
            }
        };
        if self.ty().elems().0 == 0 || self.has_no_check() {
            return Ok(());
        }
        let size = size as u64;
        let rule = Rule::Below { size, is_signed, is_wrapped };
        let expected = Expected { op, site: site.clone(), rule };
        if let Some(scalar) = self.cell().as_scalar() {
            let flag = flag_of(&scalar.to_literal(), is_signed);
            let what = expected.broken(flag);
            return what.map_or(Ok(()), |what| Err(Error::failed_check(op, site.clone(), what, false)));
        }
        let round = self.stream().checks().round();
        if self.cell().is_known_below(size, round) {
            return Ok(());
        }
        let wide = if is_signed { DType::I64 } else { DType::U64 };
        let mut bits = self.as_dtype(wide, self, site)?;
        if is_signed {
            let attrs = attrs::convert(DType::U64);
            bits = bits.record(OpCode::BitcastConvert, attrs, &[&bits], site.clone())?;
        }
        checks::expect(bits.largest(site)?.into_handle(), smallvec![expected])?;
        self.cell().set_known_below(size, round);
        Ok(())
    }

    /// The largest element, a scalar.
    fn largest(&self, site: &Site) -> Result<Tensor> {
        let all: Vec<i64> = (0..self.rank() as i64).collect();
        self.reduced(OpCode::Maximum, &all, site.clone())
    }
}

/// The flag of an index that the host knows.
fn flag_of(index: &Literal, is_signed: bool) -> u64 {
    let bytes = index.bytes();
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let word = u64::from_le_bytes(wide);
    let unused = 64 - 8 * bytes.len() as u32;
    if is_signed { ((word << unused) as i64 >> unused) as u64 } else { word }
}
