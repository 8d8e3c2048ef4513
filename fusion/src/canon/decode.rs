//! Reading regions back from their canonical bytes.
//!
//! The reader does not trust the bytes. It infers the types of every call again, so a decoded
//! region satisfies the same invariants as a recorded one.

use std::sync::Arc;

use smallvec::SmallVec;

use super::{CanonRegion, FORMAT, can_lift};
use crate::attr::{AttrValue, Attrs, Ints};
use crate::dtype::DType;
use crate::encode::{DecodeError, Reader};
use crate::groups::Groups;
use crate::handler::{Config, ConfigValue};
use crate::ir::encode::tag;
use crate::ir::{Body, Graph, OpCode, Ref, Refs};
use crate::limits::{MAX_BODY_DEPTH, MAX_RANK};
use crate::literal::Literal;
use crate::shape::{Shape, TensorType};

fn read_shape(input: &mut Reader<'_>) -> Result<Shape, DecodeError> {
    let rank = input.count()?;
    if rank > MAX_RANK {
        return Err(input.error("a rank within the limits"));
    }
    let mut dims = SmallVec::<[u64; 6]>::new();
    for _ in 0..rank {
        dims.push(input.uint()?);
    }
    Shape::new(&dims).map_err(|_| input.error("a shape within the limits"))
}

fn read_dtype(input: &mut Reader<'_>) -> Result<DType, DecodeError> {
    DType::from_code(input.byte()?).ok_or_else(|| input.error("an element type"))
}

fn read_type(input: &mut Reader<'_>) -> Result<TensorType, DecodeError> {
    let dtype = read_dtype(input)?;
    let shape = read_shape(input)?;
    Ok(TensorType::new(dtype, shape))
}

fn read_flag(input: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match input.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(input.error("a flag")),
    }
}

fn read_value(input: &mut Reader<'_>, depth: usize) -> Result<AttrValue, DecodeError> {
    Ok(match input.byte()? {
        tag::ABSENT => AttrValue::Absent,
        tag::INT => AttrValue::Int(input.int()?),
        tag::FALSE => AttrValue::Bool(false),
        tag::TRUE => AttrValue::Bool(true),
        tag::FLOAT => f32::from_le_bytes(read_raw(input)?).into(),
        tag::INTS => AttrValue::Ints(read_ints(input)?),
        tag::BOOLS => {
            let len = input.count()?;
            AttrValue::Bools((0..len).map(|_| read_flag(input)).collect::<Result<_, _>>()?)
        }
        tag::PAIRS => {
            let len = input.count()?;
            let pairs = (0..len).map(|_| Ok((input.int()?, input.int()?)));
            AttrValue::Pairs(pairs.collect::<Result<_, DecodeError>>()?)
        }
        tag::GROUPS => {
            let (rows, columns) = (input.count()?, input.count()?);
            if (rows == 0) != (columns == 0) {
                return Err(input.error("a table of replica groups with consistent rows and columns"));
            }
            let row = |input: &mut Reader<'_>| (0..columns).map(|_| input.int()).collect();
            let rows: Vec<Vec<i64>> = (0..rows).map(|_| row(input)).collect::<Result<_, _>>()?;
            AttrValue::Groups(Groups::new(&rows))
        }
        tag::ENUM => AttrValue::Enum(input.byte()?),
        tag::ENUMS => AttrValue::Enums(SmallVec::from_slice(input.bytes()?)),
        tag::DTYPE => AttrValue::DType(read_dtype(input)?),
        tag::SHAPE => AttrValue::Shape(read_shape(input)?),
        tag::DENSE => {
            let ty = read_type(input)?;
            let literal = Literal::from_bytes(ty, input.bytes()?.to_vec())
                .map_err(|_| input.error("constant data of the length of its type"))?;
            AttrValue::Dense(Arc::new(literal))
        }
        tag::STRUCT if depth < MAX_BODY_DEPTH => {
            let len = input.count()?;
            let values = (0..len).map(|_| read_value(input, depth + 1));
            AttrValue::Struct(values.collect::<Result<_, _>>()?)
        }
        tag::NAME => AttrValue::Name(read_name(input)?),
        tag::CONFIG => {
            let len = input.count()?;
            let entries: Vec<(Arc<str>, ConfigValue)> = (0..len)
                .map(|_| Ok((read_name(input)?, read_config_value(input)?)))
                .collect::<Result<_, DecodeError>>()?;
            AttrValue::Config(Config::of(entries))
        }
        _ => return Err(input.error("an attribute")),
    })
}

fn read_raw<const N: usize>(input: &mut Reader<'_>) -> Result<[u8; N], DecodeError> {
    let mut bytes = [0; N];
    for byte in &mut bytes {
        *byte = input.byte()?;
    }
    Ok(bytes)
}

fn read_ints(input: &mut Reader<'_>) -> Result<Ints, DecodeError> {
    let len = input.count()?;
    (0..len).map(|_| input.int()).collect()
}

fn read_name(input: &mut Reader<'_>) -> Result<Arc<str>, DecodeError> {
    let name = std::str::from_utf8(input.bytes()?).map_err(|_| input.error("a name"))?;
    Ok(name.into())
}

/// A value of a handler's configuration.
fn read_config_value(input: &mut Reader<'_>) -> Result<ConfigValue, DecodeError> {
    Ok(match input.byte()? {
        tag::FALSE => ConfigValue::Bool(false),
        tag::TRUE => ConfigValue::Bool(true),
        tag::INT => ConfigValue::Int(input.int()?),
        tag::FLOAT => f64::from_le_bytes(read_raw(input)?).into(),
        tag::NAME => ConfigValue::Text(read_name(input)?),
        tag::INTS => ConfigValue::Ints(read_ints(input)?),
        _ => return Err(input.error("a configuration value of a handler")),
    })
}

fn read_operands(input: &mut Reader<'_>) -> Result<Refs, DecodeError> {
    let len = input.count()?;
    (0..len)
        .map(|_| {
            let raw = input.uint()?;
            let index = u32::try_from(raw >> 1).map_err(|_| input.error("an operand"))?;
            Ok(if raw & 1 == 0 { Ref::Param(index) } else { Ref::Result(index) })
        })
        .collect()
}

fn read_nodes(input: &mut Reader<'_>, graph: &mut Graph, depth: usize) -> Result<(), DecodeError> {
    let nodes = input.count()?;
    for _ in 0..nodes {
        let op = OpCode::from_number(input.uint()?).ok_or_else(|| input.error("an opcode"))?;
        let count = input.count()?;
        let attrs: Attrs = (0..count).map(|_| read_value(input, 0)).collect::<Result<_, _>>()?;
        let count = input.count()?;
        let bodies: Vec<Arc<Body>> =
            (0..count).map(|_| read_body(input, depth + 1)).collect::<Result<_, _>>()?;
        let operands = read_operands(input)?;
        graph
            .push(op, attrs, &bodies, &operands)
            .map_err(|_| input.error("a call that fits the op table"))?;
    }
    Ok(())
}

fn read_body(input: &mut Reader<'_>, depth: usize) -> Result<Arc<Body>, DecodeError> {
    if depth > MAX_BODY_DEPTH {
        return Err(input.error("bodies within the depth limit"));
    }
    let mut graph = Graph::new();
    for _ in 0..input.count()? {
        graph.param(read_type(input)?);
    }
    read_nodes(input, &mut graph, depth)?;
    let returns = read_operands(input)?;
    Body::new(graph, &returns).map(Arc::new).ok_or_else(|| input.error("returns that exist"))
}

/// Reads a region from its canonical bytes.
///
/// # Errors
/// When the bytes are not the canonical bytes of any region.
pub fn decode(bytes: &[u8]) -> Result<CanonRegion, DecodeError> {
    let mut input = Reader::new(bytes);
    if input.byte()? != FORMAT {
        return Err(input.error("the format version"));
    }
    let mut graph = Graph::new();
    let count = input.count()?;
    let mut lifted = Vec::with_capacity(count);
    for _ in 0..count {
        let ty = read_type(&mut input)?;
        let is_lifted = read_flag(&mut input)?;
        if is_lifted && !can_lift(&ty) {
            return Err(input.error("a lifted scalar"));
        }
        graph.param(ty);
        lifted.push(is_lifted);
    }
    read_nodes(&mut input, &mut graph, 0)?;
    input.finish()?;
    let region = CanonRegion::new(graph, lifted.into_boxed_slice());
    if *region.bytes() == *bytes { Ok(region) } else { Err(Reader::new(bytes).error("canonical spelling")) }
}
