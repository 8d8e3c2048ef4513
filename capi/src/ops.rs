//! The op table, for front ends that list the ops.

use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use engine::OpCode;
use engine::fusion::attr::{AttrDef, AttrKind, Presence};
use engine::fusion::op::{Bodies, OperandGroup, Operands};
use serde_json::{Value, json};

use crate::error::{Fault, Result, c_text, fuseline_error, guard, guarded};
use crate::raw::{put, text};

/// An op, by a number that is the same in every process with one version of the library. Another
/// version may use other numbers: look it up by name (fuseline_op_find) once.
pub type fuseline_op = u32;

/// The number of ops. `fuseline_op_at` returns their numbers.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_op_count() -> usize {
    OpCode::ALL.len()
}

/// The number of the op at a position of the table, from 0; all ones if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_op_at(place: usize) -> fuseline_op {
    OpCode::ALL.get(place).map_or(u32::MAX, |&op| number(op))
}

/// The number of an op by its name, such as "add" or "dot_general".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_op_find(
    name: *const c_char,
    op: Option<&mut MaybeUninit<fuseline_op>>,
) -> *mut fuseline_error {
    guard("fuseline_op_find", || {
        // SAFETY: the caller passes null or a zero-terminated text (see the header).
        let name = unsafe { text(name, "name") }?;
        put(op, "op", || {
            OpCode::from_name(name).map(number).ok_or_else(|| {
                Fault::bad_op(format!(
                    "there is no op {name:?}; `fuseline ops` and fuseline_op_at list all ops"
                ))
            })
        })
    })
}

/// A description of an op, as JSON: name, operands, bodies, attributes with their kinds, whether it
/// has an effect. Null if there is no such op. Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_op_describe(op: fuseline_op) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    guarded(std::ptr::null(), || {
        let texts =
            TEXTS.get_or_init(|| OpCode::ALL.iter().map(|&op| c_text(describe(op).to_string())).collect());
        let place = OpCode::ALL.iter().position(|&known| number(known) == op);
        place.and_then(|place| texts.get(place)).map_or(std::ptr::null(), |text| text.as_ptr())
    })
}

fn number(op: OpCode) -> fuseline_op {
    op as fuseline_op
}

/// Looks an op up in a table, because this happens for each recorded op.
pub(crate) fn op(number: fuseline_op) -> Result<OpCode> {
    static OPS: OnceLock<Vec<Option<OpCode>>> = OnceLock::new();
    let ops = OPS.get_or_init(|| {
        let last = OpCode::ALL.iter().map(|&op| self::number(op)).max().unwrap_or(0);
        (0..=last).map(|number| OpCode::ALL.iter().copied().find(|&op| self::number(op) == number)).collect()
    });
    ops.get(number as usize).copied().flatten().ok_or_else(|| {
        Fault::bad_op(format!("no op has the number {number}; fuseline_op_find returns the number of an op"))
    })
}

fn describe(op: OpCode) -> Value {
    let def = op.def();
    let operands = match def.operands {
        Operands::Fixed(names) => json!({"fixed": names}),
        Operands::Rest { fixed, rest, min } => json!({"fixed": fixed, "rest": rest, "least": min}),
        Operands::Groups(groups) => {
            let group = |group: &OperandGroup| match group {
                OperandGroup::Many(name) => json!({"many": name}),
                OperandGroup::One(name) => json!({"one": name}),
            };
            json!({"groups": groups.iter().map(group).collect::<Vec<_>>()})
        }
    };
    let bodies = match def.bodies {
        Bodies::Fixed(bodies) => json!(bodies.iter().map(|body| body.name).collect::<Vec<_>>()),
        Bodies::Many(body) => json!({"many": body.name}),
    };
    json!({
        "name": op.name(),
        "stablehlo": op.qualified(),
        "operands": operands,
        "bodies": bodies,
        "attributes": attributes(def.attrs),
    })
}

fn attributes(defs: &[AttrDef]) -> Value {
    let attribute = |def: &AttrDef| {
        let members = match def.kind {
            AttrKind::Enum(members) | AttrKind::Enums(members) => json!(members.members),
            AttrKind::Struct(members) => attributes(members.fields),
            _ => Value::Null,
        };
        json!({
            "name": def.name,
            "kind": kind(def.kind),
            "optional": def.presence == Presence::Optional,
            "members": members,
        })
    };
    Value::Array(defs.iter().map(attribute).collect())
}

/// The kinds of value that an attribute of the table accepts, by their names in the header.
fn kind(kind: AttrKind) -> &'static str {
    match kind {
        AttrKind::Int | AttrKind::Int32 => "INTEGER",
        AttrKind::Bool | AttrKind::Unit => "FLAG",
        AttrKind::Float => "REAL",
        AttrKind::Ints | AttrKind::Shape => "INTEGERS",
        AttrKind::Bools => "FLAGS",
        AttrKind::Pairs => "INTEGERS, two for each pair",
        AttrKind::Groups => "ATTRS, one INTEGERS for each group",
        AttrKind::Enum(_) | AttrKind::Name => "TEXT",
        AttrKind::Enums(_) => "TEXTS",
        AttrKind::DType => "DTYPE",
        AttrKind::Dense => "TENSOR",
        AttrKind::Struct(_) => "ATTRS",
        AttrKind::Config => "ATTRS, of INTEGER, FLAG, REAL, TEXT and INTEGERS",
    }
}
