//! Encodes bodies and calls as bytes.
//!
//! ```text
//! nodes   = #nodes, (call, #operands, operand*)*
//! call    = opcode, #attributes, attribute*, #bodies, body*
//! body    = #params, type*, nodes, #returns, operand*
//! operand = 2 * index for a parameter, 2 * index + 1 for a result
//! type    = dtype, shape
//! shape   = rank, size*
//! ```
//!
//! Result types are omitted, because they follow from the rest.

use std::sync::Arc;

use super::{Body, Graph, OpCode, Ref};
use crate::attr::{AttrValue, Attrs};
use crate::encode::Writer;
use crate::handler::ConfigValue;
use crate::shape::{Shape, TensorType};

/// Tags of [`AttrValue`]'s variants.
pub(crate) mod tag {
    pub(crate) const ABSENT: u8 = 0;
    pub(crate) const INT: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const TRUE: u8 = 3;
    pub(crate) const INTS: u8 = 4;
    pub(crate) const BOOLS: u8 = 5;
    pub(crate) const PAIRS: u8 = 6;
    pub(crate) const ENUM: u8 = 7;
    pub(crate) const ENUMS: u8 = 8;
    pub(crate) const DTYPE: u8 = 9;
    pub(crate) const SHAPE: u8 = 10;
    pub(crate) const DENSE: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const NAME: u8 = 13;
    pub(crate) const FLOAT: u8 = 14;
    pub(crate) const GROUPS: u8 = 15;
    pub(crate) const CONFIG: u8 = 16;
}

fn write_shape(out: &mut Writer, shape: &Shape) {
    out.len(shape.rank());
    for &dim in shape.dims() {
        out.uint(dim);
    }
}

/// Writes a type.
pub(crate) fn write_type(out: &mut Writer, ty: &TensorType) {
    out.byte(ty.dtype().code());
    write_shape(out, ty.shape());
}

// The kinds of values that attributes and handler configurations share.

fn write_flag(out: &mut Writer, flag: bool) {
    out.byte(if flag { tag::TRUE } else { tag::FALSE });
}

fn write_int(out: &mut Writer, value: i64) {
    out.byte(tag::INT);
    out.int(value);
}

fn write_ints(out: &mut Writer, values: &[i64]) {
    out.byte(tag::INTS);
    out.len(values.len());
    values.iter().for_each(|&value| out.int(value));
}

fn write_name(out: &mut Writer, name: &str) {
    out.byte(tag::NAME);
    out.bytes(name.as_bytes());
}

fn write_value(out: &mut Writer, value: &AttrValue) {
    match value {
        AttrValue::Absent => out.byte(tag::ABSENT),
        AttrValue::Int(value) => write_int(out, *value),
        AttrValue::Bool(value) => write_flag(out, *value),
        AttrValue::Float(value) => {
            out.byte(tag::FLOAT);
            out.raw(&value.get().to_le_bytes());
        }
        AttrValue::Ints(values) => write_ints(out, values),
        AttrValue::Bools(values) => {
            out.byte(tag::BOOLS);
            out.len(values.len());
            values.iter().for_each(|&value| out.byte(value.into()));
        }
        AttrValue::Pairs(pairs) => {
            out.byte(tag::PAIRS);
            out.len(pairs.len());
            for &(low, high) in pairs {
                out.int(low);
                out.int(high);
            }
        }
        AttrValue::Groups(groups) => {
            out.byte(tag::GROUPS);
            out.len(groups.rows().len());
            out.len(groups.columns());
            groups.rows().flatten().for_each(|&id| out.int(id));
        }
        AttrValue::Enum(member) => {
            out.byte(tag::ENUM);
            out.byte(*member);
        }
        AttrValue::Enums(members) => {
            out.byte(tag::ENUMS);
            out.bytes(members);
        }
        AttrValue::DType(dtype) => {
            out.byte(tag::DTYPE);
            out.byte(dtype.code());
        }
        AttrValue::Shape(shape) => {
            out.byte(tag::SHAPE);
            write_shape(out, shape);
        }
        AttrValue::Dense(literal) => {
            out.byte(tag::DENSE);
            write_type(out, literal.ty());
            out.bytes(literal.bytes());
        }
        AttrValue::Struct(values) => {
            out.byte(tag::STRUCT);
            out.len(values.len());
            values.iter().for_each(|value| write_value(out, value));
        }
        AttrValue::Name(name) => write_name(out, name),
        AttrValue::Config(config) => {
            out.byte(tag::CONFIG);
            out.len(config.entries().len());
            for (name, value) in config.entries() {
                out.bytes(name.as_bytes());
                write_config_value(out, value);
            }
        }
    }
}

/// A value of a handler's configuration, encoded as an attribute value of its kind; a float has 8
/// bytes.
fn write_config_value(out: &mut Writer, value: &ConfigValue) {
    match value {
        ConfigValue::Bool(value) => write_flag(out, *value),
        ConfigValue::Int(value) => write_int(out, *value),
        ConfigValue::Float(value) => {
            out.byte(tag::FLOAT);
            out.raw(&value.get().to_le_bytes());
        }
        ConfigValue::Text(text) => write_name(out, text),
        ConfigValue::Ints(values) => write_ints(out, values),
    }
}

fn write_operands(out: &mut Writer, operands: &[Ref]) {
    out.len(operands.len());
    for &operand in operands {
        out.uint(match operand {
            Ref::Param(index) => u64::from(index) << 1,
            Ref::Result(index) => u64::from(index) << 1 | 1,
        });
    }
}

/// Writes the nodes of a graph.
pub(crate) fn write_nodes(out: &mut Writer, graph: &Graph) {
    out.len(graph.nodes().len());
    for node in graph.nodes() {
        out.raw(node.signature().encoded());
        write_operands(out, node.operands());
    }
}

fn write_body(out: &mut Writer, body: &Body) {
    out.len(body.graph().params().len());
    for ty in body.graph().params() {
        write_type(out, ty);
    }
    write_nodes(out, body.graph());
    write_operands(out, body.returns());
}

/// Encodes a body.
pub(crate) fn encode_body(body: &Body) -> Vec<u8> {
    let mut out = Writer::new();
    write_body(&mut out, body);
    out.into_vec()
}

/// Encodes a call without its operands.
pub(crate) fn encode_call(op: OpCode, attrs: &Attrs, bodies: &[Arc<Body>]) -> Box<[u8]> {
    let mut out = Writer::new();
    out.uint(op.number().into());
    out.len(attrs.values().len());
    attrs.values().iter().for_each(|value| write_value(&mut out, value));
    out.len(bodies.len());
    bodies.iter().for_each(|body| write_body(&mut out, body));
    out.into_vec().into_boxed_slice()
}

/// A stable hash of a call without its operands, from its encoding and the operand types.
pub(crate) fn token(encoded: &[u8], operands: &[TensorType]) -> u64 {
    let mut out = Writer::with_capacity(encoded.len() + 16 * operands.len());
    out.raw(encoded);
    operands.iter().for_each(|ty| write_type(&mut out, ty));
    let [a, b, c, d, e, f, g, h, ..] = *blake3::hash(out.as_slice()).as_bytes();
    u64::from_le_bytes([a, b, c, d, e, f, g, h])
}
