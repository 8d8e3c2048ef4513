//! Sums of products by Einstein's convention, with the notation and the rules of NumPy's `einsum`.
//!
//! A letter names a dimension of each operand. Dimensions with the same name share an index, and
//! those that the result does not have are summed over. The function records a sequence of products
//! of two operands, each a `dot_general` or, if nothing is summed, a multiplication.
//!
//! ```text
//! "bij,bjk->bik" ─► Equation (parse.rs) ─► Terms: diagonals taken, lone names summed
//!     ─► order (plan.rs) ─► products ─► order of the result
//! ```

mod parse;
mod plan;

use std::fmt;

use fuseline_fusion::op::attrs::DotDimensionNumbers;
use fuseline_fusion::{OpError, OpErrorKind, Shape, Site};
use fuseline_runtime::internals::{bug, here};
use fuseline_runtime::{Error, Result};
use smallvec::SmallVec;

use self::parse::Equation;
use self::plan::{Names, Plan};
use crate::handle::Tensor;
use crate::promote::promote_types;

/// The name of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Name {
    /// A dimension that `...` stands for, counted from the last one.
    Unnamed(usize),
    Letter(char),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Unnamed(place) => write!(f, "dimension -{} of `...`", place + 1),
            Name::Letter(letter) => write!(f, "`{letter}`"),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An operand whose dimensions have different names, in order.
#[derive(Clone)]
struct Term {
    tensor: Tensor,
    names: SmallVec<[Name; 6]>,
}

/// The error of an invalid equation.
#[cold]
fn refused(fault: OpErrorKind, given: impl Into<String>, rule: impl Into<String>, site: &Site) -> Error {
    Error::op(OpError::new("einsum", fault, given, rule), site.clone())
}

/// The sum of products that an equation describes, as NumPy's `einsum` defines it.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// use fuseline::einsum;
/// let a = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
/// let b = engine.tensor(&[1.0f32, 0.0, -1.0], &[3])?;
/// let trace = einsum("ii", &[&a])?;
/// let turned = einsum("ij->ji", &[&a])?;
/// let products = einsum("ij,k->ijk", &[&a, &b])?;
/// let batched = einsum("...ij,...jk", &[&a, &a])?;
/// assert_eq!(trace.item::<f32>()?, 5.0);
/// assert_eq!(turned.to_vec::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
/// assert_eq!(products.dims(), [2, 2, 3]);
/// assert_eq!(batched.to_vec::<f32>()?, [7.0, 10.0, 15.0, 22.0]);
/// # Ok(())
/// # }
/// ```
///
/// - Letters name dimensions; `...` stands for those that have no name, which broadcast.
/// - Dimensions with one name have one size, or 1, which broadcasts.
/// - A letter twice in one operand takes the diagonal.
/// - Without `->` the result has the dimensions of `...` and then the letters that occur once, in
///   alphabetical order with capitals first.
/// - Blanks are ignored. Element types promote.
///
/// Three or more operands are multiplied pairwise, in the order that needs the fewest
/// multiplications. For more than eight operands, a greedy search chooses the order.
///
/// # Errors
/// When the equation is invalid, the number of operands or dimensions differs from it, or sizes do
/// not fit.
#[track_caller]
pub fn einsum(equation: &str, operands: &[&Tensor]) -> Result<Tensor> {
    let site = here();
    let equation = Equation::parse(equation, &site)?;
    let named = equation.name(operands, &site)?;
    let sizes = Sizes::of(operands, &named.operands, &site)?;

    let mut dtype = operands[0].dtype();
    for operand in operands {
        let Some(common) = promote_types(dtype, operand.dtype()) else {
            let types: Vec<String> = operands.iter().map(|operand| operand.ty().to_string()).collect();
            let given = format!("the operands are {}", types.join(", "));
            return Err(refused(OpErrorKind::DType, given, "their element types do not promote", &site));
        };
        dtype = common;
    }
    let mut terms = Vec::with_capacity(operands.len());
    for (operand, names) in operands.iter().zip(&named.operands) {
        let tensor = if operand.dtype() == dtype { (*operand).clone() } else { operand.convert(dtype)? };
        terms.push(Term { tensor, names: names.clone() }.distinct(&sizes)?);
    }
    // Dimensions of only one operand that the result does not have are summed before the products,
    // to keep these small.
    for place in 0..terms.len() {
        let elsewhere = |name: &Name| {
            let others = terms.iter().enumerate().filter(|&(other, _)| other != place);
            named.result.contains(name) || others.flat_map(|(_, term)| &term.names).any(|other| other == name)
        };
        let (kept, lone) = terms[place].names.iter().copied().partition::<SmallVec<[Name; 6]>, _>(elsewhere);
        if !lone.is_empty() {
            terms[place] = terms[place].without(&kept)?;
        }
    }
    let names: Vec<Names> = terms.iter().map(|term| term.names.iter().copied().collect()).collect();
    let plan = Plan::of(&names, &named.result, |name| sizes.of_name(name) as f64);
    for (i, j) in plan.pairs {
        let rhs = terms.remove(j);
        let lhs = terms.remove(i);
        let others = terms.iter().flat_map(|term| term.names.iter());
        let wanted: Names = others.chain(&named.result).copied().collect();
        // The last product can have the order of the result, or nearly.
        let order = if terms.is_empty() { named.result.as_slice() } else { &[] };
        terms.push(product(lhs, rhs, &wanted, order)?);
    }
    let Some(last) = terms.pop() else {
        return Err(bug!("an equation needs at least one operand"));
    };
    last.arranged(&named.result, &sizes)
}

/// The size of each name.
struct Sizes(Vec<(Name, usize)>);

impl Sizes {
    fn of(operands: &[&Tensor], names: &[SmallVec<[Name; 6]>], site: &Site) -> Result<Sizes> {
        let mut sizes: Vec<(Name, usize)> = Vec::new();
        for (place, (operand, names)) in operands.iter().zip(names).enumerate() {
            for (axis, (&name, &size)) in names.iter().zip(operand.dims()).enumerate() {
                if let Some(first) = names[..axis].iter().position(|&other| other == name)
                    && operand.dims()[first] != size
                {
                    let given = format!(
                        "operand {place} is {}, and {name} labels its dimensions {first} and {axis}",
                        operand.ty()
                    );
                    return Err(refused(
                        OpErrorKind::Shape,
                        given,
                        "the dimensions of a diagonal must have the same size",
                        site,
                    ));
                }
                match sizes.iter_mut().find(|(other, _)| *other == name) {
                    None => sizes.push((name, size)),
                    Some((_, common)) if *common == 1 => *common = size,
                    Some((_, common)) if *common == size || size == 1 => {}
                    Some((_, common)) => {
                        let types: Vec<String> =
                            operands.iter().map(|operand| operand.ty().to_string()).collect();
                        let given = format!(
                            "{name} has size {common} before operand {place} and size {size} in \
                             it; the operands are {}",
                            types.join(", ")
                        );
                        let rule = "dimensions with the same label must have the same size, or 1";
                        return Err(refused(OpErrorKind::Shape, given, rule, site));
                    }
                }
            }
        }
        Ok(Sizes(sizes))
    }

    fn of_name(&self, name: Name) -> usize {
        self.0.iter().find(|(other, _)| *other == name).map_or(1, |&(_, size)| size)
    }
}

impl Term {
    /// The term with each name once: takes diagonals and drops dimensions that broadcast.
    #[track_caller]
    fn distinct(mut self, sizes: &Sizes) -> Result<Term> {
        let fits = |name: &Name, size: usize| size == sizes.of_name(*name);
        if !self.names.iter().zip(self.tensor.dims()).all(|(name, &size)| fits(name, size)) {
            let dims: Vec<usize> = self.tensor.dims().to_vec();
            let kept: Vec<usize> =
                (0..dims.len()).filter(|&axis| fits(&self.names[axis], dims[axis])).collect();
            let sizes: Vec<usize> = kept.iter().map(|&axis| dims[axis]).collect();
            self.names = kept.iter().map(|&axis| self.names[axis]).collect();
            self.tensor = self.tensor.reshape(&sizes)?;
        }
        loop {
            let twice = (0..self.names.len()).find_map(|i| {
                self.names[i + 1..].iter().position(|name| *name == self.names[i]).map(|j| (i, i + 1 + j))
            });
            let Some((first, second)) = twice else { return Ok(self) };
            self.tensor = self.tensor.diagonal(first as i64, second as i64)?;
            // The diagonal is the last dimension.
            self.names.remove(second);
            let name = self.names.remove(first);
            self.names.push(name);
        }
    }

    /// The term summed over all names but these.
    #[track_caller]
    fn without(&self, kept: &[Name]) -> Result<Term> {
        let axes: Vec<i64> = (0..self.names.len())
            .filter(|&axis| !kept.contains(&self.names[axis]))
            .map(|axis| axis as i64)
            .collect();
        let names = self.names.iter().copied().filter(|name| kept.contains(name)).collect();
        Ok(Term { tensor: self.tensor.sum(&axes)?, names })
    }

    /// The term with the names in the given order. Missing names become dimensions of size 1, or
    /// are broadcast.
    #[track_caller]
    fn arranged(&self, order: &[Name], sizes: &Sizes) -> Result<Tensor> {
        let present: SmallVec<[Name; 6]> =
            order.iter().copied().filter(|name| self.names.contains(name)).collect();
        let tensor = self.transposed(&present)?;
        if present.len() == order.len() {
            return Ok(tensor);
        }
        let dims: Vec<usize> = order.iter().map(|&name| sizes.of_name(name)).collect();
        let map: Vec<i64> =
            (0..order.len()).filter(|&axis| present.contains(&order[axis])).map(|axis| axis as i64).collect();
        tensor.broadcast_in_dim(&dims, &map)
    }

    /// The term with all its names in the given order.
    #[track_caller]
    fn transposed(&self, order: &[Name]) -> Result<Tensor> {
        if self.names.as_slice() == order {
            return Ok(self.tensor.clone());
        }
        let permutation: Vec<i64> = order.iter().filter_map(|name| self.axis(*name)).collect();
        self.tensor.transpose(&permutation)
    }

    fn axis(&self, name: Name) -> Option<i64> {
        self.names.iter().position(|other| *other == name).map(|axis| axis as i64)
    }

    fn axes(&self, names: &[Name]) -> SmallVec<[i64; 4]> {
        names.iter().filter_map(|&name| self.axis(name)).collect()
    }
}

/// The product of two terms, summed over the shared names that are not in `wanted`.
#[track_caller]
fn product(lhs: Term, rhs: Term, wanted: &Names, order: &[Name]) -> Result<Term> {
    let shared = |name: &&Name| rhs.names.contains(name);
    let batch: SmallVec<[Name; 6]> =
        lhs.names.iter().filter(shared).filter(|name| wanted.contains(name)).copied().collect();
    let summed: SmallVec<[Name; 6]> =
        lhs.names.iter().filter(shared).filter(|name| !wanted.contains(name)).copied().collect();
    if summed.is_empty() {
        return multiplied(lhs, rhs, order);
    }
    let free = |term: &Term| -> SmallVec<[Name; 6]> {
        let used = |name: &&Name| !batch.contains(name) && !summed.contains(name);
        term.names.iter().filter(used).copied().collect()
    };
    let (of_lhs, of_rhs) = (free(&lhs), free(&rhs));
    let names = |first: &[Name], second: &[Name]| -> SmallVec<[Name; 6]> {
        batch.iter().chain(first).chain(second).copied().collect()
    };
    // The result has the names of the left factor before those of the right one.
    let swapped = names(&of_lhs, &of_rhs).as_slice() != order && names(&of_rhs, &of_lhs).as_slice() == order;
    let (lhs, rhs, names) = match swapped {
        true => (rhs, lhs, names(&of_rhs, &of_lhs)),
        false => (lhs, rhs, names(&of_lhs, &of_rhs)),
    };
    let tensor = lhs.tensor.dot_general(
        &rhs.tensor,
        DotDimensionNumbers {
            lhs_batching: &lhs.axes(&batch),
            rhs_batching: &rhs.axes(&batch),
            lhs_contracting: &lhs.axes(&summed),
            rhs_contracting: &rhs.axes(&summed),
        },
    )?;
    Ok(Term { tensor, names })
}

/// The product of two terms without a sum.
#[track_caller]
fn multiplied(lhs: Term, rhs: Term, order: &[Name]) -> Result<Term> {
    let mut names: SmallVec<[Name; 6]> =
        order.iter().copied().filter(|name| lhs.names.contains(name) || rhs.names.contains(name)).collect();
    for &name in lhs.names.iter().chain(&rhs.names) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let size = |name: Name| {
        let of = |term: &Term| term.axis(name).map(|axis| term.tensor.dims()[axis as usize]);
        of(&lhs).or(of(&rhs)).unwrap_or(1)
    };
    let sizes = Sizes(names.iter().map(|&name| (name, size(name))).collect());
    let shape = Shape::try_from(names.iter().map(|&name| size(name)).collect::<Vec<_>>().as_slice())?;
    let (lhs, rhs) = (lhs.arranged(&names, &sizes)?, rhs.arranged(&names, &sizes)?);
    debug_assert_eq!((lhs.shape(), rhs.shape()), (&shape, &shape));
    Ok(Term { tensor: lhs.mul(&rhs)?, names })
}
