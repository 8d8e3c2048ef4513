//! Attribute values as text for messages.

use std::fmt;

use super::{AttrKind, AttrValue};
use crate::dtype::{DType, DTypeClass};
use crate::element::{Elements, to_f64, to_int};
use crate::literal::Literal;

/// An attribute value as text, such as `[0, 2]` or `TOTALORDER`. Constant data with several
/// elements is shown by its type.
#[derive(Clone, Copy, Debug)]
pub struct AttrText<'a> {
    kind: AttrKind,
    value: &'a AttrValue,
}

impl AttrKind {
    /// A value of this kind as text for messages.
    ///
    /// ```
    /// use fuseline_fusion::attr::{AttrKind, AttrValue};
    ///
    /// let sizes = AttrValue::from(&[128][..]);
    /// assert_eq!(AttrKind::Ints.text(&sizes).to_string(), "[128]");
    /// ```
    #[must_use]
    pub fn text(self, value: &AttrValue) -> AttrText<'_> {
        AttrText { kind: self, value }
    }
}

impl fmt::Display for AttrText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.value, self.kind) {
            (AttrValue::Absent, _) => f.write_str("absent"),
            (AttrValue::Int(value), _) => write!(f, "{value}"),
            (AttrValue::Bool(value), _) => write!(f, "{value}"),
            (AttrValue::Float(value), _) => write!(f, "{value:?}"),
            (AttrValue::Ints(values), _) => write!(f, "{:?}", values.as_slice()),
            (AttrValue::Bools(values), _) => write!(f, "{:?}", values.as_slice()),
            (AttrValue::Pairs(pairs), _) => write!(f, "{:?}", pairs.as_slice()),
            (AttrValue::Groups(groups), _) => write!(f, "{groups:?}"),
            (AttrValue::Enum(member), AttrKind::Enum(def)) => f.write_str(name(def.members, *member)),
            (AttrValue::Enums(members), AttrKind::Enums(def)) => {
                let names: Vec<&str> = members.iter().map(|&member| name(def.members, member)).collect();
                write!(f, "[{}]", names.join(", "))
            }
            (AttrValue::Enum(member), _) => write!(f, "member {member} of an enumeration"),
            (AttrValue::Enums(members), _) => write!(f, "members {:?} of an enumeration", members.as_slice()),
            (AttrValue::DType(dtype), _) => write!(f, "{dtype}"),
            (AttrValue::Shape(shape), _) => write!(f, "{shape}"),
            (AttrValue::Dense(data), _) => data_text(data, f),
            (AttrValue::Struct(values), AttrKind::Struct(def)) if values.len() == def.fields.len() => {
                let fields = def.fields.iter().zip(values);
                let fields =
                    fields.map(|(field, value)| format!("{} = {}", field.name, field.kind.text(value)));
                write!(f, "({})", fields.collect::<Vec<_>>().join(", "))
            }
            (AttrValue::Struct(values), _) => write!(f, "a group of {} attributes", values.len()),
            (AttrValue::Name(name), _) => f.write_str(name),
            (AttrValue::Config(config), _) => {
                let entries = config.entries().iter().map(|(name, value)| format!("{name}: {value}"));
                write!(f, "{{{}}}", entries.collect::<Vec<_>>().join(", "))
            }
        }
    }
}

/// The name of a member of an enumeration.
fn name(members: &[&'static str], member: u8) -> &'static str {
    members.get(usize::from(member)).copied().unwrap_or("an unknown member")
}

/// The only element of a real or bool literal; the type of other literals.
fn data_text(data: &Literal, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (dtype, elements) = (data.dtype(), Elements::of(data));
    if elements.len() != 1 {
        return write!(f, "data of type {}", data.ty());
    }
    let bits = elements.get(0);
    match dtype.class() {
        DTypeClass::Bool => write!(f, "{}", to_int(dtype, bits) != 0),
        DTypeClass::Signed | DTypeClass::Unsigned => write!(f, "{}", to_int(dtype, bits)),
        DTypeClass::Float if dtype == DType::F64 => write!(f, "{:?}", to_f64(dtype, bits)),
        DTypeClass::Float => write!(f, "{:?}", to_f64(dtype, bits) as f32),
        DTypeClass::Complex => write!(f, "data of type {}", data.ty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{OpCode, attrs};

    #[test]
    fn values_are_written_as_in_the_specification() {
        let def = OpCode::Compare.def();
        let texts = |op: OpCode, attrs: &super::super::Attrs| -> Vec<String> {
            let pairs = op.def().attrs.iter().zip(attrs.values());
            pairs.map(|(def, value)| def.kind.text(value).to_string()).collect()
        };
        assert_eq!(def.attrs[0].kind.text(&AttrValue::Enum(4)).to_string(), "LE");
        assert_eq!(def.attrs[0].kind.text(&AttrValue::Enum(9)).to_string(), "an unknown member");
        assert_eq!(AttrKind::Int.text(&AttrValue::Enum(9)).to_string(), "member 9 of an enumeration");
        assert_eq!(texts(OpCode::Transpose, &attrs::transpose(&[1, 0])), ["[1, 0]"]);
        assert_eq!(texts(OpCode::Convert, &attrs::convert(DType::F16)), ["f16"]);
        let constant = |data: Literal| AttrKind::Dense.text(&AttrValue::Dense(data.into())).to_string();
        assert_eq!(constant(Literal::scalar(0.5f32)), "0.5");
        assert_eq!(constant(Literal::scalar(true)), "true");
        assert_eq!(constant(Literal::scalar(-3i8)), "-3");
        let pair = Literal::from_slice(&[2], &[1i32, 2]).expect("a literal");
        assert_eq!(constant(pair), "data of type i32[2]");
    }
}
