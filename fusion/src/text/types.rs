//! Reads types: `tensor<2x3xf32>`, lists of them, and function types.

use smallvec::SmallVec;

use super::error::{Problem, Result, Shown};
use super::scan::{Scanner, fault, other, unsupported};
use crate::dtype::DType;
use crate::limits::MAX_RANK;
use crate::shape::TensorType;

/// The type clause after the colon of an op: types, and after an arrow the result types.
pub(super) struct TypeClause {
    /// Its position.
    pub(super) at: usize,
    /// The types before the arrow.
    pub(super) left: Vec<TensorType>,
    /// The types after the arrow, if there is one.
    pub(super) results: Option<Vec<TensorType>>,
}

impl<'t> Scanner<'t> {
    /// Reads an element type, as in `tensor<...>`.
    pub(super) fn dtype(&mut self) -> Result<DType> {
        let start = self.place();
        if self.peek_adjacent() == Some(b'!') {
            return Err(unsupported(
                start,
                "dialect types (`!...`), such as quantized ones, are not supported",
            ));
        }
        if self.word().is_none() {
            return Err(self.expected("an element type"));
        }
        let is_complex = self.since(start) == "complex" && self.take_adjacent(b'<');
        if is_complex {
            self.word();
            self.expect(">")?;
        }
        let name = self.since(start);
        let known = DType::ALL.into_iter().find(|dtype| dtype.stablehlo() == name);
        known.ok_or_else(|| fault(start, Problem::UnknownDType(name.to_owned())))
    }

    /// Reads a tensor type.
    pub(super) fn ty(&mut self) -> Result<TensorType> {
        let start = self.place();
        if !self.eat_word("tensor") {
            return match self.peek_adjacent() {
                Some(b'!') => Err(unsupported(
                    start,
                    "only tensors are supported, not tokens or other types of a dialect",
                )),
                _ if self.eat_word("tuple") => Err(unsupported(start, "tuples are not supported")),
                _ => Err(self.expected("a type such as `tensor<2x3xf32>`")),
            };
        }
        self.expect("<")?;
        let mut dims = SmallVec::<[u64; 6]>::new();
        loop {
            let place = self.place();
            match self.peek_adjacent() {
                Some(b'?') => {
                    return Err(unsupported(
                        place,
                        "dynamic sizes (`?`) are not supported: every size must be a number",
                    ));
                }
                Some(b'*') => return Err(unsupported(place, "unranked tensors are not supported")),
                Some(b'0'..=b'9') if dims.len() == MAX_RANK => {
                    return Err(other(start, format!("a tensor may have at most {MAX_RANK} dimensions")));
                }
                Some(b'0'..=b'9') => {
                    let dim = self.run(|byte| byte.is_ascii_digit());
                    dims.push(
                        dim.parse()
                            .map_err(|_| other(place, format!("the size {} is too large", Shown(dim))))?,
                    );
                    if !self.take_adjacent(b'x') {
                        return Err(self.expected("`x`"));
                    }
                }
                _ => break,
            }
        }
        let dtype = self.dtype()?;
        if self.peek() == Some(b',') {
            let place = self.place();
            return Err(unsupported(place, "tensor encodings (bounded sizes, layouts) are not supported"));
        }
        self.expect(">")?;
        TensorType::of(dtype, &dims).map_err(|error| other(start, error.to_string()))
    }

    /// Reads types in parentheses, separated by commas; there may be none.
    pub(super) fn type_list(&mut self) -> Result<Vec<TensorType>> {
        let mut types = Vec::new();
        self.list(["(", ")"], |scanner| {
            types.push(scanner.ty()?);
            Ok(())
        })?;
        Ok(types)
    }

    /// Reads one or more types separated by commas, without parentheses.
    pub(super) fn bare_types(&mut self) -> Result<Vec<TensorType>> {
        let mut types = vec![self.ty()?];
        while self.eat(",") {
            types.push(self.ty()?);
        }
        Ok(types)
    }

    /// Reads one type, or several in parentheses.
    pub(super) fn result_types(&mut self) -> Result<Vec<TensorType>> {
        if self.peek() == Some(b'(') { self.type_list() } else { Ok(vec![self.ty()?]) }
    }

    /// Reads everything after the colon of an op.
    pub(super) fn type_clause(&mut self) -> Result<TypeClause> {
        let at = self.place();
        let left = if self.peek() == Some(b'(') { self.type_list()? } else { self.bare_types()? };
        let results = if self.eat("->") { Some(self.result_types()?) } else { None };
        Ok(TypeClause { at, left, results })
    }
}
