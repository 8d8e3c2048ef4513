//! Attributes of ops: a small closed set of value kinds, and the schema that the op table gives for
//! each op.
//!
//! An op's attributes are a list in the order of its schema ([`AttrDef`]s), not a map. That one
//! list drives the canonical encoding, the program format, the lowering and the error messages.
//! Attribute values hold no pointers, and they hold floating point numbers as bits, so equality,
//! hashing and encoding are exact. The only strings are names, whose characters need no escaping in
//! a module ([`is_name`]).
//!
//! - ATTR-1: after [`check`] every value has the kind that its schema names, including lists of
//!   fixed length. The accessors of [`Attrs`] rely on it. They panic if the op table and an infer
//!   rule disagree, which is a bug in this crate and cannot be reached from user input.

pub(crate) mod config;
mod text;

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use self::config::Config;
pub use self::text::AttrText;
use crate::dtype::DType;
use crate::error::{OpError, OpErrorKind};
use crate::groups::Groups;
use crate::limits::{MAX_CONFIG, MAX_NAME};
use crate::literal::Literal;
use crate::shape::{Shape, TensorType};

/// A list of integers; short lists stay inline.
pub type Ints = SmallVec<[i64; 4]>;

/// A list of (low, high) pairs.
pub type Pairs = SmallVec<[(i64, i64); 2]>;

/// A 32-bit float as an attribute. It is compared, hashed and encoded by its bits. All NaNs become
/// one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttrFloat(u32);

impl AttrFloat {
    /// Wraps a number; every NaN becomes the canonical one.
    #[must_use]
    pub fn new(value: f32) -> AttrFloat {
        AttrFloat(if value.is_nan() { f32::NAN } else { value }.to_bits())
    }

    /// The number.
    #[inline]
    #[must_use]
    pub fn get(self) -> f32 {
        f32::from_bits(self.0)
    }
}

impl fmt::Debug for AttrFloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// One attribute value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AttrValue {
    /// An optional attribute that was not given.
    Absent,
    /// An integer.
    Int(i64),
    /// A flag.
    Bool(bool),
    /// A 32-bit float.
    Float(AttrFloat),
    /// A list of integers.
    Ints(Ints),
    /// A list of flags.
    Bools(SmallVec<[bool; 8]>),
    /// A list of pairs: low and high padding, source and target.
    Pairs(Pairs),
    /// Groups of replicas.
    Groups(Groups),
    /// A member of an enumeration, as an index into [`EnumDef::members`].
    Enum(u8),
    /// A list of members of an enumeration.
    Enums(SmallVec<[u8; 8]>),
    /// An element type.
    DType(DType),
    /// A shape.
    Shape(Shape),
    /// Constant data.
    Dense(Arc<Literal>),
    /// A group of attributes, such as the dimension numbers of a convolution, in the order of its
    /// [`StructDef`].
    Struct(Box<[AttrValue]>),
    /// A name that the user chose: of a composite, or the target of a custom call.
    Name(Arc<str>),
    /// The configuration that a call passes to its handler.
    Config(Config),
}

/// An enumeration of the StableHLO specification.
#[derive(Debug, PartialEq, Eq)]
pub struct EnumDef {
    /// StableHLO's name of the attribute (`comparison_direction`).
    pub name: &'static str,
    /// Spellings of the members, in the order of their codes.
    pub members: &'static [&'static str],
}

/// A group of attributes with a name in StableHLO (`dot`, `conv`, `gather`, `scatter`).
#[derive(Debug, PartialEq, Eq)]
pub struct StructDef {
    /// StableHLO's mnemonic, as in `#stablehlo.dot<...>`.
    pub mnemonic: &'static str,
    /// The keyword before the first member: `raw` for convolutions, whose usual form is positional.
    pub keyword: &'static str,
    /// The members.
    pub fields: &'static [AttrDef],
}

/// The kind of values that an attribute can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// [`AttrValue::Int`].
    Int,
    /// [`AttrValue::Int`] that StableHLO writes with 32 bits.
    Int32,
    /// [`AttrValue::Bool`].
    Bool,
    /// [`AttrValue::Bool`] that StableHLO writes as presence or absence.
    Unit,
    /// [`AttrValue::Float`].
    Float,
    /// [`AttrValue::Ints`].
    Ints,
    /// [`AttrValue::Bools`].
    Bools,
    /// [`AttrValue::Pairs`].
    Pairs,
    /// [`AttrValue::Groups`].
    Groups,
    /// [`AttrValue::Enum`].
    Enum(&'static EnumDef),
    /// [`AttrValue::Enums`].
    Enums(&'static EnumDef),
    /// [`AttrValue::Struct`].
    Struct(&'static StructDef),
    /// [`AttrValue::DType`].
    DType,
    /// [`AttrValue::Shape`].
    Shape,
    /// [`AttrValue::Dense`].
    Dense,
    /// [`AttrValue::Name`] that [`is_name`] accepts.
    Name,
    /// [`AttrValue::Config`] that is valid ([`Config::is_sound`]).
    Config,
}

/// Whether a text may be a name in keys and modules: 1 to [`MAX_NAME`] ASCII letters, digits and `_
/// . - / :`. Such a name needs no escapes and cannot end the quotes around it.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/:".contains(&byte);
    (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(allowed)
}

/// Where the value of an attribute comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// Must be given.
    Required,
    /// May be [`AttrValue::Absent`].
    Optional,
    /// StableHLO writes it as the type of the result, not as an attribute: the `dtype` of a
    /// `convert`, the `shape` of a `reshape`. Recorded ops carry it as an attribute, so that result
    /// types follow from operands and attributes.
    FromResult,
}

/// One entry of an op's attribute schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrDef {
    /// StableHLO's name.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: AttrKind,
    /// Whether it must be given.
    pub presence: Presence,
}

impl AttrDef {
    /// An attribute that must be given.
    #[must_use]
    pub const fn required(name: &'static str, kind: AttrKind) -> AttrDef {
        AttrDef { name, kind, presence: Presence::Required }
    }

    /// An attribute that may be left out.
    #[must_use]
    pub const fn optional(name: &'static str, kind: AttrKind) -> AttrDef {
        AttrDef { name, kind, presence: Presence::Optional }
    }

    /// An attribute that StableHLO writes as the type of the result.
    #[must_use]
    pub const fn from_result(name: &'static str, kind: AttrKind) -> AttrDef {
        AttrDef { name, kind, presence: Presence::FromResult }
    }

    /// The value of an attribute that StableHLO writes as the type of a result.
    #[must_use]
    pub fn of_result(&self, result: &TensorType) -> AttrValue {
        match self.kind {
            AttrKind::Shape => AttrValue::Shape(result.shape().clone()),
            _ => AttrValue::DType(result.dtype()),
        }
    }
}

impl fmt::Display for AttrKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttrKind::Int | AttrKind::Int32 => f.write_str("an integer"),
            AttrKind::Bool | AttrKind::Unit => f.write_str("true or false"),
            AttrKind::Float => f.write_str("a number"),
            AttrKind::Ints => f.write_str("a list of integers"),
            AttrKind::Bools => f.write_str("a list of booleans"),
            AttrKind::Pairs => f.write_str("a list of pairs of integers"),
            AttrKind::Groups => f.write_str("a list of groups of replicas"),
            AttrKind::Enum(def) => write!(f, "one of {}", def.members.join(", ")),
            AttrKind::Enums(def) => write!(f, "a list of {}", def.members.join(", ")),
            AttrKind::Struct(def) => {
                write!(f, "an object with ")?;
                for (i, field) in def.fields.iter().enumerate() {
                    if i > 0 {
                        f.write_str(", ")?;
                    }
                    f.write_str(field.name)?;
                }
                Ok(())
            }
            AttrKind::DType => f.write_str("an element type"),
            AttrKind::Shape => f.write_str("a shape"),
            AttrKind::Dense => f.write_str("constant data"),
            AttrKind::Name => {
                write!(f, "a name of at most {MAX_NAME} ASCII letters, digits and `_ . - / :`")
            }
            AttrKind::Config => write!(
                f,
                "at most {MAX_CONFIG} entries, each an identifier and a flag, a number, a name or a list of up to \
                 {MAX_CONFIG} integers"
            ),
        }
    }
}

/// The attributes of one op, in schema order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Attrs(SmallVec<[AttrValue; 2]>);

impl Attrs {
    /// No attributes.
    pub const NONE: Attrs = Attrs(SmallVec::new_const());

    /// No attributes.
    #[inline]
    #[must_use]
    pub fn none() -> Attrs {
        Attrs::NONE
    }

    /// The values, in schema order.
    #[inline]
    #[must_use]
    pub fn values(&self) -> &[AttrValue] {
        &self.0
    }
}

impl<const N: usize> From<[AttrValue; N]> for Attrs {
    fn from(values: [AttrValue; N]) -> Self {
        Attrs(values.into_iter().collect())
    }
}

impl FromIterator<AttrValue> for Attrs {
    fn from_iter<I: IntoIterator<Item = AttrValue>>(values: I) -> Self {
        Attrs(values.into_iter().collect())
    }
}

/// Typed access by position in the schema. [`check`] must have accepted the attributes first
/// (ATTR-1).
#[derive(Clone, Copy, Debug)]
pub struct AttrView<'a>(&'a [AttrValue]);

impl Attrs {
    /// Typed access to the values.
    #[inline]
    #[must_use]
    pub fn view(&self) -> AttrView<'_> {
        AttrView(&self.0)
    }
}

#[cold]
fn disagree(place: usize, wanted: &str, found: Option<&AttrValue>) -> ! {
    panic!(
        "bug: attribute {place} is {found:?} where the rule expects {wanted}; the op table and the rule disagree"
    )
}

macro_rules! accessor {
    ($(#[$doc:meta])* $name:ident, $variant:ident($value:ident) -> $ty:ty, $result:expr) => {
        $(#[$doc])*
        #[inline]
        #[must_use]
        pub fn $name(&self, place: usize) -> $ty {
            match self.0.get(place) {
                Some(AttrValue::$variant($value)) => $result,
                other => disagree(place, stringify!($variant), other),
            }
        }
    };
}

impl<'a> AttrView<'a> {
    accessor!(/// The integer at `place`.
        int, Int(value) -> i64, *value);
    accessor!(/// The flag at `place`.
        bool, Bool(value) -> bool, *value);
    accessor!(/// The float at `place`.
        float, Float(value) -> f32, value.get());
    accessor!(/// The integers at `place`.
        ints, Ints(value) -> &'a [i64], value);
    accessor!(/// The flags at `place`.
        bools, Bools(value) -> &'a [bool], value);
    accessor!(/// The pairs at `place`.
        pairs, Pairs(value) -> &'a [(i64, i64)], value);
    accessor!(/// The groups of replicas at `place`.
        groups, Groups(value) -> &'a Groups, value);
    accessor!(/// The enumeration member at `place`.
        member, Enum(value) -> u8, *value);
    accessor!(/// The element type at `place`.
        dtype, DType(value) -> DType, *value);
    accessor!(/// The shape at `place`.
        shape, Shape(value) -> &'a Shape, value);
    accessor!(/// The constant at `place`.
        dense, Dense(value) -> &'a Arc<Literal>, value);
    accessor!(/// The name at `place`.
        name, Name(value) -> &'a Arc<str>, value);
    accessor!(/// What is said to a handler, at `place`.
        config, Config(value) -> &'a Config, value);
    accessor!(/// The members of the group at `place`.
        group, Struct(value) -> AttrView<'a>, AttrView(value));
}

impl AttrValue {
    fn fits(&self, kind: AttrKind) -> bool {
        match (self, kind) {
            (AttrValue::Int(value), AttrKind::Int32) => i32::try_from(*value).is_ok(),
            (AttrValue::Int(_), AttrKind::Int)
            | (AttrValue::Bool(_), AttrKind::Bool | AttrKind::Unit)
            | (AttrValue::Float(_), AttrKind::Float)
            | (AttrValue::Ints(_), AttrKind::Ints)
            | (AttrValue::Bools(_), AttrKind::Bools)
            | (AttrValue::Pairs(_), AttrKind::Pairs)
            | (AttrValue::Groups(_), AttrKind::Groups)
            | (AttrValue::DType(_), AttrKind::DType)
            | (AttrValue::Shape(_), AttrKind::Shape)
            | (AttrValue::Dense(_), AttrKind::Dense) => true,
            (AttrValue::Enum(member), AttrKind::Enum(def)) => usize::from(*member) < def.members.len(),
            (AttrValue::Enums(members), AttrKind::Enums(def)) => {
                members.iter().all(|&member| usize::from(member) < def.members.len())
            }
            (AttrValue::Struct(values), AttrKind::Struct(def)) => {
                values.len() == def.fields.len()
                    && values.iter().zip(def.fields).all(|(value, field)| value.meets(field))
            }
            (AttrValue::Name(name), AttrKind::Name) => is_name(name),
            (AttrValue::Config(config), AttrKind::Config) => config.is_sound(),
            _ => false,
        }
    }

    fn meets(&self, def: &AttrDef) -> bool {
        match self {
            AttrValue::Absent => def.presence == Presence::Optional,
            value => value.fits(def.kind),
        }
    }
}

/// Checks values against a schema, establishing ATTR-1.
///
/// # Errors
/// When a value is missing, superfluous or of the wrong kind.
pub fn check(op: &'static str, schema: &[AttrDef], attrs: &Attrs) -> Result<(), OpError> {
    if attrs.0.len() != schema.len() {
        return Err(OpError::new(
            op,
            OpErrorKind::Attribute,
            format!("{} attributes were given", attrs.0.len()),
            format!("{op} takes {}", schema.len()),
        ));
    }
    for (def, value) in schema.iter().zip(&attrs.0) {
        if !value.meets(def) {
            let given = match value {
                AttrValue::Absent => format!("attribute {} is missing", def.name),
                value => format!("attribute {} is {}", def.name, def.kind.text(value)),
            };
            return Err(OpError::new(op, OpErrorKind::Attribute, given, format!("it must be {}", def.kind)));
        }
    }
    Ok(())
}

impl From<i64> for AttrValue {
    fn from(value: i64) -> Self {
        AttrValue::Int(value)
    }
}

impl From<bool> for AttrValue {
    fn from(value: bool) -> Self {
        AttrValue::Bool(value)
    }
}

impl From<f32> for AttrValue {
    fn from(value: f32) -> Self {
        AttrValue::Float(AttrFloat::new(value))
    }
}

impl From<&[i64]> for AttrValue {
    fn from(values: &[i64]) -> Self {
        AttrValue::Ints(Ints::from_slice(values))
    }
}

impl From<&[bool]> for AttrValue {
    fn from(values: &[bool]) -> Self {
        AttrValue::Bools(SmallVec::from_slice(values))
    }
}

impl From<&[(i64, i64)]> for AttrValue {
    fn from(values: &[(i64, i64)]) -> Self {
        AttrValue::Pairs(Pairs::from_slice(values))
    }
}

impl From<Groups> for AttrValue {
    fn from(groups: Groups) -> Self {
        AttrValue::Groups(groups)
    }
}

impl From<DType> for AttrValue {
    fn from(value: DType) -> Self {
        AttrValue::DType(value)
    }
}

impl From<&str> for AttrValue {
    fn from(name: &str) -> Self {
        AttrValue::Name(name.into())
    }
}

impl From<Config> for AttrValue {
    fn from(config: Config) -> Self {
        AttrValue::Config(config)
    }
}

impl From<Shape> for AttrValue {
    fn from(value: Shape) -> Self {
        AttrValue::Shape(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static COLOR: EnumDef = EnumDef { name: "color", members: &["RED", "GREEN"] };
    static GROUP: StructDef = StructDef {
        mnemonic: "group",
        keyword: "",
        fields: &[
            AttrDef::required("axes", AttrKind::Ints),
            AttrDef::optional("color", AttrKind::Enum(&COLOR)),
        ],
    };
    static SCHEMA: [AttrDef; 2] =
        [AttrDef::required("axis", AttrKind::Int), AttrDef::required("group", AttrKind::Struct(&GROUP))];

    fn group(color: AttrValue) -> AttrValue {
        AttrValue::Struct(Box::new([AttrValue::from(&[0, 1][..]), color]))
    }

    #[test]
    fn kinds_are_checked_to_the_bottom() {
        let good = Attrs::from([AttrValue::Int(1), group(AttrValue::Enum(1))]);
        check("op", &SCHEMA, &good).expect("fits the schema");
        assert_eq!(good.view().group(1).ints(0), [0, 1]);
        let absent = Attrs::from([AttrValue::Int(1), group(AttrValue::Absent)]);
        check("op", &SCHEMA, &absent).expect("color is optional");

        for bad in [
            Attrs::from([AttrValue::Int(1)]),
            Attrs::from([AttrValue::Bool(true), group(AttrValue::Absent)]),
            Attrs::from([AttrValue::Int(1), group(AttrValue::Enum(2))]),
            Attrs::from([AttrValue::Int(1), group(AttrValue::Int(0))]),
            Attrs::from([AttrValue::Absent, group(AttrValue::Absent)]),
        ] {
            let error = check("op", &SCHEMA, &bad).expect_err("does not fit the schema");
            assert_eq!(error.fault(), OpErrorKind::Attribute);
        }
    }

    #[test]
    fn names_cannot_leave_their_quotes() {
        let schema = [AttrDef::required("name", AttrKind::Name)];
        let given = |name: &str| check("op", &schema, &Attrs::from([name.into()]));
        for good in ["f", "my.softmax", "xla_ffi:target/v1.2-a", &"n".repeat(MAX_NAME)] {
            given(good).expect("a name");
        }
        for bad in
            ["", "a b", "a\"", "a\\", "a\n", "é", "a}", "%a", "@f", "#x", "\0", &"n".repeat(MAX_NAME + 1)]
        {
            assert_eq!(given(bad).expect_err("no name").fault(), OpErrorKind::Attribute, "{bad:?}");
        }
    }
}
