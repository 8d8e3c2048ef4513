//! Writes program files.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::{Program, ProgramId, Role};
use crate::attr::{AttrKind, AttrValue};
use crate::handler::ConfigValue;
use crate::ir::{Body, Ref, Signature};
use crate::literal::Literal;
use crate::shape::TensorType;

/// The whole program.
pub(super) fn program(program: &Program) -> Value {
    // Bodies get ids above all others.
    let used = program.values.iter().map(|value| value.id.0);
    let made = program.ops.iter().flat_map(|op| op.results.iter().map(|id| id.0));
    let mut writer = Writer { next: used.chain(made).max().map_or(0, |id| id + 1) };
    let mut values = Vec::new();
    for value in &program.values {
        let mut object = literal(&value.data);
        object.insert("id".to_owned(), json!(value.id.0));
        object.insert(
            "role".to_owned(),
            json!(match value.role {
                Role::Input => "input",
                Role::Const => "const",
            }),
        );
        values.push(Value::Object(object));
    }
    let ops: Vec<Value> =
        program.ops.iter().map(|op| writer.op(&op.signature, &op.operands, &op.results)).collect();
    let mut root = Map::new();
    for (key, text) in [("name", &program.name), ("source", &program.source), ("class", &program.class)] {
        if !text.is_empty() {
            root.insert(key.to_owned(), json!(text));
        }
    }
    root.insert("n_ops".to_owned(), json!(program.op_count()));
    root.insert("values".to_owned(), Value::Array(values));
    root.insert("ops".to_owned(), Value::Array(ops));
    root.insert("outputs".to_owned(), ids(&program.outputs));
    if !program.expected.is_empty() {
        let expected = program.expected.iter().map(|data| Value::Object(literal(data))).collect();
        root.insert("expected".to_owned(), Value::Array(expected));
        let checks = program.checks.iter().map(|check| check.to_json()).collect();
        root.insert("checks".to_owned(), Value::Array(checks));
    }
    Value::Object(root)
}

fn ids(ids: &[ProgramId]) -> Value {
    ids.iter().map(|id| id.0).collect()
}

fn type_object(ty: &TensorType) -> Map<String, Value> {
    let mut object = Map::new();
    object.insert("shape".to_owned(), json!(ty.dims()));
    object.insert("dtype".to_owned(), json!(ty.dtype().mlir()));
    object
}

fn literal(literal: &Literal) -> Map<String, Value> {
    let mut object = type_object(literal.ty());
    object.insert("data".to_owned(), json!(STANDARD.encode(literal.bytes())));
    object
}

/// A 32-bit float; words stand for values that JSON numbers cannot express.
fn float(value: f32) -> Value {
    match value {
        value if value.is_nan() => json!("nan"),
        f32::INFINITY => json!("inf"),
        f32::NEG_INFINITY => json!("-inf"),
        value => json!(f64::from(value)),
    }
}

/// A value of a handler's configuration. A float is a number with a point, or an object if JSON has
/// no such number.
fn config_value(value: &ConfigValue) -> Value {
    match value {
        ConfigValue::Bool(value) => json!(value),
        ConfigValue::Int(value) => json!(value),
        ConfigValue::Float(value) if value.get().is_finite() => json!(value.get()),
        ConfigValue::Float(value) => json!({"float": float(value.get() as f32)}),
        ConfigValue::Text(text) => json!(&**text),
        ConfigValue::Ints(values) => json!(values.as_slice()),
    }
}

fn attribute(kind: AttrKind, value: &AttrValue) -> Value {
    match (value, kind) {
        (AttrValue::Int(value), _) => json!(value),
        (AttrValue::Bool(value), _) => json!(value),
        (AttrValue::Float(value), _) => float(value.get()),
        (AttrValue::Ints(values), _) => json!(values.as_slice()),
        (AttrValue::Bools(values), _) => json!(values.as_slice()),
        (AttrValue::Pairs(pairs), _) => json!(pairs.as_slice()),
        (AttrValue::Groups(groups), _) => json!(groups.rows().collect::<Vec<_>>()),
        (AttrValue::Enum(member), AttrKind::Enum(def)) => json!(def.members[usize::from(*member)]),
        (AttrValue::Enums(members), AttrKind::Enums(def)) => {
            members.iter().map(|&member| def.members[usize::from(member)]).collect()
        }
        (AttrValue::DType(dtype), _) => json!(dtype.mlir()),
        (AttrValue::Shape(shape), _) => json!(shape.dims()),
        (AttrValue::Dense(data), _) => Value::Object(literal(data)),
        (AttrValue::Name(name), _) => json!(&**name),
        (AttrValue::Config(config), _) => Value::Object(
            config.entries().iter().map(|(name, value)| (name.to_string(), config_value(value))).collect(),
        ),
        (AttrValue::Struct(values), AttrKind::Struct(def)) => Value::Object(
            def.fields
                .iter()
                .zip(values)
                .map(|(field, value)| (field.name.to_owned(), attribute(field.kind, value)))
                .collect(),
        ),
        (value, kind) => unreachable!("bug: attribute {value:?} is not {kind}"),
    }
}

struct Writer {
    next: u32,
}

impl Writer {
    fn fresh(&mut self) -> ProgramId {
        self.next += 1;
        ProgramId(self.next - 1)
    }

    fn op(&mut self, signature: &Signature, operands: &[ProgramId], results: &[ProgramId]) -> Value {
        let attrs: Map<String, Value> = signature
            .stated_attrs()
            .map(|(def, value)| (def.name.to_owned(), attribute(def.kind, value)))
            .collect();
        let results: Vec<Value> = results
            .iter()
            .zip(signature.results())
            .map(|(id, ty)| {
                let mut object = type_object(ty);
                object.insert("id".to_owned(), json!(id.0));
                Value::Object(object)
            })
            .collect();
        let mut object = json!({
            "op": signature.op().qualified(),
            "operands": ids(operands),
            "results": results,
            "attrs": attrs,
        });
        if !signature.bodies().is_empty() {
            object["regions"] = signature.bodies().iter().map(|body| self.body(body)).collect();
        }
        object
    }

    fn body(&mut self, body: &Body) -> Value {
        let graph = body.graph();
        let params: Vec<ProgramId> = graph.params().iter().map(|_| self.fresh()).collect();
        let results: Vec<ProgramId> = (0..graph.result_count()).map(|_| self.fresh()).collect();
        let id = |value: Ref| match value {
            Ref::Param(index) => params[index as usize],
            Ref::Result(index) => results[index as usize],
        };
        let args: Vec<Value> = graph
            .params()
            .iter()
            .zip(&params)
            .map(|(ty, id)| {
                let mut object = type_object(ty);
                object.insert("id".to_owned(), json!(id.0));
                Value::Object(object)
            })
            .collect();
        let mut ops = Vec::new();
        for node in graph.nodes() {
            let operands: Vec<ProgramId> = node.operands().iter().map(|&value| id(value)).collect();
            let made: Vec<ProgramId> = node.results().map(id).collect();
            ops.push(self.op(node.signature(), &operands, &made));
        }
        let returns: Vec<ProgramId> = body.returns().iter().map(|&value| id(value)).collect();
        json!({"args": args, "ops": ops, "returns": ids(&returns)})
    }
}
