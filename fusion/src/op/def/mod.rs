//! The columns of the op table.

mod call;

use std::sync::Arc;

pub use call::Call;
pub(super) use call::one;

use crate::attr::AttrDef;
use crate::dtype::DTypeSet;
use crate::error::OpError;
use crate::ir::{Body, Effect, OpCode, Results};

/// How many operands an op takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operands {
    /// Exactly these, by name.
    Fixed(&'static [&'static str]),
    /// These, then at least `min` operands under the last name (`concatenate`, `dynamic_slice`).
    Rest {
        /// The operands before the repeated one.
        fixed: &'static [&'static str],
        /// Name of the repeated operand.
        rest: &'static str,
        /// Minimum number of repetitions.
        min: usize,
    },
    /// Groups of equal length, one after the other, with fixed operands between them. `reduce` has
    /// `N` inputs and `N` initial values: `Groups(&[Group("inputs"), Group("init_values")])`.
    Groups(&'static [OperandGroup]),
}

/// One part of [`Operands::Groups`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperandGroup {
    /// `N` operands of this name.
    Many(&'static str),
    /// One operand of this name.
    One(&'static str),
}

/// The signature that an op requires of a body, in words; the infer rule checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyDef {
    /// StableHLO's name of the region (`body`, `select`, `scatter`).
    pub name: &'static str,
    /// Its type, in words.
    pub rule: &'static str,
}

/// How many bodies an op takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bodies {
    /// Exactly these.
    Fixed(&'static [BodyDef]),
    /// One or more of this kind: the branches of `case`.
    Many(BodyDef),
}

impl Bodies {
    /// No bodies.
    pub const NONE: Bodies = Bodies::Fixed(&[]);

    /// Whether the op takes none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Bodies::Fixed([]))
    }

    /// Whether `count` bodies fit.
    #[must_use]
    pub fn takes(&self, count: usize) -> bool {
        match self {
            Bodies::Fixed(bodies) => count == bodies.len(),
            Bodies::Many(_) => count > 0,
        }
    }

    /// The number of bodies in words, for messages.
    #[must_use]
    pub fn words(&self) -> String {
        match self {
            Bodies::Fixed([]) => "none".to_owned(),
            Bodies::Fixed(bodies) => {
                let names: Vec<&str> = bodies.iter().map(|body| body.name).collect();
                format!("{} ({})", bodies.len(), names.join(", "))
            }
            Bodies::Many(body) => format!("at least 1 ({}...)", body.name),
        }
    }

    /// Name of body `index`, for messages.
    #[must_use]
    pub fn name(&self, index: usize) -> String {
        match self {
            Bodies::Fixed(bodies) => bodies.get(index).map_or("body", |body| body.name).to_owned(),
            Bodies::Many(body) => format!("{} {index}", body.name),
        }
    }
}

/// How an op takes part in fusion. Boundary rules and explanations use these classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fusibility {
    /// Produces data without operands: constants, `iota`.
    Source,
    /// Each result element depends on the operand elements at the same position.
    Elementwise,
    /// Moves elements without computing: reshape, transpose, slice, pad, broadcast.
    Movement,
    /// Combines many elements into one: `reduce`, `reduce_window`.
    Reduction,
    /// Products summed over a dimension: `dot_general`, `convolution`. Usually a library call.
    Contraction,
    /// Reads or writes at computed positions: gather, scatter, dynamic slices.
    Indexing,
    /// Not fused with anything.
    Opaque,
}

/// The effect of rounding on an op's results on floats. On integers and `bool` every op is exact.
///
/// Two executors may round differently inside a fused region (a multiply and an add become one
/// instruction, a sum uses another order). These classes bound how such a difference propagates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// No rounding: moves, negates, selects or compares by position only. Equal operands give equal
    /// results.
    Exact,
    /// Rounds and is continuous: nearly equal operands give nearly equal results.
    Rounded,
    /// Discontinuous: nearly equal operands can give results a whole step apart (`floor`,
    /// `compare`, conversion to integers).
    Step,
}

impl Rounding {
    /// The class of a combination of both.
    #[must_use]
    pub fn worse(self, other: Rounding) -> Rounding {
        match (self, other) {
            (Rounding::Step, _) | (_, Rounding::Step) => Rounding::Step,
            (Rounding::Rounded, _) | (_, Rounding::Rounded) => Rounding::Rounded,
            _ => Rounding::Exact,
        }
    }
}

/// How the replicas of a program take part in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replicas {
    /// Each computes it independently.
    Apart,
    /// All compute it together: the result of one depends on the operands of others, or on the
    /// replica's number.
    Together,
    /// Control flow: independent, unless a body contains a collective op; then the replicas execute
    /// the bodies in lockstep.
    InStep,
}

/// The MLIR dialect that an op's name belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// The operations of the StableHLO specification.
    #[default]
    Stablehlo,
    /// "Client HLO": ops beyond the specification that front ends write and XLA expands.
    Chlo,
}

impl Dialect {
    /// The part before the dot of an op's name in a module.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        match self {
            Dialect::Stablehlo => "stablehlo",
            Dialect::Chlo => "chlo",
        }
    }
}

/// What a call is lowered to.
#[derive(Clone, Debug, PartialEq)]
pub enum Lowered {
    /// Itself.
    Itself,
    /// Another op with the same operands, attributes and results.
    As(OpCode),
    /// Several ops: a body that takes the call's operands and returns its results. Its ops are
    /// printed unchanged, not expanded again.
    Body(Body),
    /// The ops of the call's own body, each lowered in turn, with the operands as parameters.
    Inline(Arc<Body>),
}

/// One row of the op table.
#[derive(Debug, Clone, Copy)]
pub struct OpDef {
    /// The opcode.
    pub code: OpCode,
    /// The dialect of the name.
    pub dialect: Dialect,
    /// The name without the dialect; no two rows share one.
    pub name: &'static str,
    /// One sentence that says what it computes.
    pub summary: &'static str,
    /// The constraints on operands and attributes and the result types, in words; `infer`
    /// implements them.
    pub rule: &'static str,
    /// How many operands it takes.
    pub operands: Operands,
    /// Its attributes, in the order of [`crate::attr::Attrs`].
    pub attrs: &'static [AttrDef],
    /// The functions it takes.
    pub bodies: Bodies,
    /// Index of the first operand that is passed to every body as a parameter, for ops whose bodies
    /// have no parameters in StableHLO and capture values (`if`, `case`). `None` for ops that
    /// compute the arguments of their bodies.
    pub captures: Option<usize>,
    /// Element types of the first operand, or of the result if there is no operand. The rule
    /// derives the others.
    pub dtypes: DTypeSet,
    /// How it takes part in fusion.
    pub fusibility: Fusibility,
    /// The effect of rounding on its results.
    pub rounding: Rounding,
    /// Its side effect.
    pub effect: Effect,
    /// How the replicas of a program take part in it.
    pub replicas: Replicas,
    /// Infers the result types from operand types, attributes and bodies that fit the row.
    pub infer: fn(&Call<'_>) -> Result<Results, OpError>,
    /// What the lowering prints in place of the op, where XLA deviates from the specification.
    pub lower: fn(&Call<'_>) -> Lowered,
}

impl OpDef {
    /// Whether replicas exchange data in it. `replica_id` runs on all replicas, but exchanges none.
    #[must_use]
    pub fn exchanges(&self) -> bool {
        matches!(self.replicas, Replicas::Together) && self.code != OpCode::ReplicaId
    }

    /// Number of operands in words, for messages.
    #[must_use]
    pub fn operand_words(&self) -> String {
        match self.operands {
            Operands::Fixed([]) => "no operands".to_owned(),
            Operands::Fixed(names) => format!("{} ({})", names.len(), names.join(", ")),
            Operands::Rest { fixed, rest, min } => {
                let mut words: Vec<&str> = fixed.to_vec();
                words.push(rest);
                format!("at least {} ({}...)", fixed.len() + min, words.join(", "))
            }
            Operands::Groups(groups) => {
                let words: Vec<String> = groups
                    .iter()
                    .map(|group| match group {
                        OperandGroup::Many(name) => format!("N {name}"),
                        OperandGroup::One(name) => (*name).to_owned(),
                    })
                    .collect();
                words.join(", then ")
            }
        }
    }

    /// Whether `count` operands fit the row.
    #[must_use]
    pub fn takes(&self, count: usize) -> bool {
        match self.operands {
            Operands::Fixed(names) => count == names.len(),
            Operands::Rest { fixed, min, .. } => count >= fixed.len() + min,
            Operands::Groups(groups) => {
                let many = groups.iter().filter(|g| matches!(g, OperandGroup::Many(_))).count();
                let ones = groups.len() - many;
                count > ones && (count - ones).is_multiple_of(many)
            }
        }
    }

    /// Name of operand `index` of a call with `count` operands, for messages.
    #[must_use]
    pub fn operand_name(&self, index: usize, count: usize) -> String {
        match self.operands {
            Operands::Fixed(names) => names.get(index).copied().unwrap_or("operand").to_owned(),
            Operands::Rest { fixed, rest, .. } => match fixed.get(index) {
                Some(name) => (*name).to_owned(),
                None => format!("{rest} {}", index - fixed.len()),
            },
            Operands::Groups(groups) => {
                let many = groups.iter().filter(|g| matches!(g, OperandGroup::Many(_))).count();
                let size = (count - (groups.len() - many)) / many.max(1);
                let mut left = index;
                for group in groups {
                    match group {
                        OperandGroup::Many(name) if left < size => return format!("{name} {left}"),
                        OperandGroup::Many(_) => left -= size,
                        OperandGroup::One(name) if left == 0 => return (*name).to_owned(),
                        OperandGroup::One(_) => left -= 1,
                    }
                }
                "operand".to_owned()
            }
        }
    }
}
