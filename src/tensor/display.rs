//! Printing the elements of a tensor.
//!
//! Input: the data of a value, read from the device. Output: text that nests as NumPy's does, one
//! row of the last dimension per line. Large tensors are summarised: each dimension shows its two
//! ends.

use std::fmt::{self, Write as _};

use fuseline_fusion::element::{self, Bits, Elements};
use fuseline_fusion::{DType, DTypeClass, Literal, Site};
use fuseline_record::mode::caller;

use super::Tensor;

/// Tensors with more elements are summarised, as in NumPy.
const MAX_ELEMENTS: usize = 1_000;

/// Pairs of a rank and the number of elements at each end of a summarised dimension, up to that
/// rank. At most `(2 * 3)^4` elements are shown, and `2^12` at the largest rank.
const EDGES: [(usize, usize); 2] = [(4, 3), (usize::MAX, 1)];

/// Number of columns after which a row is wrapped.
const MAX_COLUMNS: usize = 80;

/// Prints the elements, and so waits until they have been computed. An error is printed as the
/// error.
///
/// A tensor of rank 0 is printed as its element, others in brackets, the elements of the last
/// dimension on one line where they fit. Precision and width apply to each element. Of more than
/// 1,000 elements only the first and the last three along each dimension are printed (the first and
/// the last one where there are more than four dimensions), with `...` between them; `{:#}` prints
/// all. The whole tensor is copied to the host in either case.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// let x = engine.tensor(&[0.5f32, -1.0, 20.25, 3.0], &[2, 2])?;
/// assert_eq!(x.to_string(), "[[  0.5,  -1.0],\n [20.25,   3.0]]");
/// assert_eq!(format!("mean: {:.2}", x.mean(&[0, 1])?), "mean: 5.69");
/// # Ok(())
/// # }
/// ```
impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.handle().literal_at(caller().cloned().unwrap_or(Site::Unknown)) {
            Ok(data) => ElementPrinter::of(&data, f).write(f),
            Err(error) => write!(f, "{error}"),
        }
    }
}

/// Prints the elements of a tensor.
struct ElementPrinter<'a> {
    elements: Elements<'a>,
    dtype: DType,
    dims: &'a [u64],
    /// How many elements each end of a dimension shows; `None` for all.
    edge: Option<usize>,
    precision: Option<usize>,
    /// Columns of each element.
    width: usize,
}

impl<'a> ElementPrinter<'a> {
    fn of(data: &'a Literal, f: &fmt::Formatter<'_>) -> ElementPrinter<'a> {
        let elements = Elements::of(data);
        let dims = data.dims();
        let is_summary = elements.len() > MAX_ELEMENTS && !f.alternate();
        let edge = EDGES.iter().find(|(rank, _)| dims.len() <= *rank).map(|&(_, edge)| edge);
        let edge = edge.filter(|_| is_summary);
        let mut picture =
            ElementPrinter { elements, dtype: data.dtype(), dims, edge, precision: f.precision(), width: 0 };
        if !data.bytes().is_empty() {
            picture.width = f.width().unwrap_or(0).max(picture.widest(0, 0));
        }
        picture
    }

    fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.elements.is_empty() {
            return f.write_str(&self.part(0, 0));
        }
        match self.dims {
            [_] => f.write_str("[]"),
            dims => write!(f, "[] of shape {dims:?}"),
        }
    }

    /// The indices of a dimension that are shown, with `None` for the gap.
    fn places(&self, size: usize) -> impl Iterator<Item = Option<usize>> + use<> {
        let edge = self.edge.filter(|edge| size > 2 * edge).unwrap_or(size);
        let gap = (edge < size).then_some(None);
        let last = if edge < size { size - edge..size } else { 0..0 };
        (0..edge).map(Some).chain(gap).chain(last.map(Some))
    }

    /// The width of the longest shown element of a part. `place` is its row-major index over the
    /// dimensions before `axis`.
    fn widest(&self, axis: usize, place: usize) -> usize {
        let Some(&size) = self.dims.get(axis) else {
            return self.element(place).len();
        };
        let parts = self.places(size as usize).flatten();
        parts.map(|part| self.widest(axis + 1, place * size as usize + part)).max().unwrap_or(0)
    }

    /// The text of such a part.
    fn part(&self, axis: usize, place: usize) -> String {
        let Some(&size) = self.dims.get(axis) else {
            return format!("{:>width$}", self.element(place), width = self.width);
        };
        let below = self.dims.len() - axis - 1;
        let indent = " ".repeat(axis + 1);
        let mut text = "[".to_owned();
        let mut column = axis + 1;
        for (index, shown) in self.places(size as usize).enumerate() {
            let part = match shown {
                Some(part) => self.part(axis + 1, place * size as usize + part),
                None => "...".to_owned(),
            };
            // The comma or bracket behind the element stays on its line.
            let is_over = below == 0 && column + part.len() + 2 > MAX_COLUMNS;
            if index > 0 {
                text.push(',');
                match below {
                    0 if !is_over => text.push(' '),
                    lines => {
                        text.push_str(&"\n".repeat(lines.max(1)));
                        text.push_str(&indent);
                        column = axis + 1;
                    }
                }
            }
            column += part.len() + 2;
            text.push_str(&part);
        }
        text + "]"
    }

    fn element(&self, place: usize) -> String {
        let bits = self.elements.get(place);
        match self.dtype.class() {
            DTypeClass::Bool => (bits != 0).to_string(),
            DTypeClass::Float => self.float(self.dtype, bits),
            DTypeClass::Complex => {
                let (re, im) = element::parts(self.dtype, bits);
                let part = self.dtype.part();
                let mut text = self.float(part, re);
                let im = self.float(part, im);
                let sign = if im.starts_with('-') { "" } else { "+" };
                // Writing to a string does not fail.
                let _ = write!(text, "{sign}{im}i");
                text
            }
            _ => element::to_int(self.dtype, bits).to_string(),
        }
    }

    /// As Rust prints numbers: the shortest text that parses as the same number, in decimal
    /// notation unless that is long. Floats below 32 bits are printed as `f32` numbers.
    fn float(&self, dtype: DType, bits: Bits) -> String {
        let value = element::to_f64(dtype, bits);
        match self.precision {
            Some(precision) => format!("{value:.precision$}"),
            None if dtype == DType::F64 => format!("{value:?}"),
            None => format!("{:?}", value as f32),
        }
    }
}
