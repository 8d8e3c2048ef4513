//! Reads program files.

use std::collections::HashMap;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::field::{dtype, id, ty};
use super::json::At;
use super::tuple::Tuples;
use super::{Check, Problem, Program, ProgramError, ProgramId, ProgramOp, ProgramValue, Role};
use crate::attr::{AttrDef, AttrKind, AttrValue, Attrs, Ints, Pairs, Presence, StructDef};
use crate::groups::Groups;
use crate::handler::{Config, ConfigValue};
use crate::ir::{Body, Graph, OpCode, Ref, Signature};
use crate::limits::{MAX_BODY_DEPTH, MAX_CONSTANT_BYTES, MAX_GRAPH_OPS};
use crate::literal::Literal;
use crate::shape::{Shape, TensorType};

type Result<T, E = ProgramError> = std::result::Result<T, E>;

pub(super) fn program(text: &str) -> Result<Program> {
    let json: Value = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let words = error.to_string();
        // The location precedes the message, so it is removed from the message itself.
        let words = words.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&words);
        let error = ProgramError::new(format!("line {line} column {column}"), words);
        ProgramError { position: Some((line, column)), ..error }
    })?;
    let root = At::root(&json);
    let optional = |key: &str| -> Result<String> {
        root.find(key)?.map_or(Ok(String::new()), |at| at.string().map(str::to_owned))
    };
    let mut reader = Reader::default();
    let mut values = Vec::new();
    for at in root.get("values")?.list()? {
        values.push(reader.value(&at)?);
    }
    let mut ops = Vec::new();
    for at in root.get("ops")?.list()? {
        ops.extend(reader.op(&at)?);
    }
    let mut outputs = Vec::new();
    let mut output_types = Vec::new();
    for at in root.get("outputs")?.list()? {
        let id = reader.tuples.tensor(&at, id(&at)?)?;
        output_types.push(reader.defined(&at, id)?.clone());
        outputs.push(id);
    }
    let mut expected = Vec::new();
    if let Some(list) = root.find("expected")? {
        for at in list.list()? {
            expected.push(literal(&at)?);
        }
        if !expected.is_empty() && expected.len() != outputs.len() {
            return Err(list.error(format!(
                "{} expected tensors for {} outputs",
                expected.len(),
                outputs.len()
            )));
        }
        for (i, (literal, ty)) in expected.iter().zip(&output_types).enumerate() {
            if literal.ty() != ty {
                return Err(
                    list.error(format!("expected tensor {i} is {}, but the output is {ty}", literal.ty()))
                );
            }
        }
    }
    let mut checks = Vec::new();
    if let Some(list) = root.find("checks")? {
        for at in list.list()? {
            checks.push(check(&at)?);
        }
        if checks.len() != expected.len() {
            return Err(list.error(format!(
                "{} checks for {} expected tensors",
                checks.len(),
                expected.len()
            )));
        }
    } else {
        checks.resize(expected.len(), Check::Exact);
    }
    Ok(Program {
        name: optional("name")?,
        source: optional("source")?,
        class: optional("class")?,
        values,
        ops,
        outputs,
        expected,
        checks,
    })
}

fn check(at: &At<'_>) -> Result<Check> {
    match at.get("check")?.string()? {
        "exact" => Ok(Check::Exact),
        "close" => {
            let ulp = at.get("ulp")?;
            let distance = u64::try_from(ulp.int()?).map_err(|_| ulp.error("must be at least 0"))?;
            Ok(Check::Close { ulp: distance })
        }
        "almost" => {
            let tolerance = at.get("tolerance")?;
            Check::almost(tolerance.number()?).ok_or_else(|| tolerance.error("must be at least 0"))
        }
        other => Err(at.error(format!("{other:?} is not one of the checks exact, close, almost"))),
    }
}

fn literal(at: &At<'_>) -> Result<Literal> {
    let ty = ty(at)?;
    let data = at.get("data")?;
    let bytes =
        STANDARD.decode(data.string()?).map_err(|error| data.error(format!("not base64: {error}")))?;
    Literal::from_bytes(ty, bytes).map_err(|error| data.error(error.to_string()))
}

/// The ids defined so far.
#[derive(Default)]
struct Reader {
    types: HashMap<ProgramId, TensorType>,
    /// Data of the values, for bodies that use them as constants.
    data: HashMap<ProgramId, Arc<Literal>>,
    ops: usize,
    tuples: Tuples,
}

impl Reader {
    fn define(&mut self, at: &At<'_>, id: ProgramId, ty: TensorType) -> Result<()> {
        let twice = self.tuples.contains(id);
        match self.types.insert(id, ty) {
            None if !twice => Ok(()),
            _ => Err(at.error(format!("id {} is defined twice", id.0))),
        }
    }

    fn defined(&self, at: &At<'_>, id: ProgramId) -> Result<&TensorType> {
        self.types.get(&id).ok_or_else(|| at.error(format!("id {} is not defined before its use", id.0)))
    }

    fn value(&mut self, at: &At<'_>) -> Result<ProgramValue> {
        let id_at = at.get("id")?;
        let id = id(&id_at)?;
        let role = at.get("role")?;
        let role = match role.string()? {
            "input" => Role::Input,
            "const" => Role::Const,
            other => return Err(role.error(format!("{other:?} is not one of the roles input, const"))),
        };
        let data = Arc::new(literal(at)?);
        self.define(&id_at, id, data.ty().clone())?;
        self.data.insert(id, data.clone());
        Ok(ProgramValue { id, role, data })
    }

    fn count_op(&mut self, at: &At<'_>) -> Result<()> {
        self.ops += 1;
        if self.ops > MAX_GRAPH_OPS {
            return Err(at.error(format!("a program has at most {MAX_GRAPH_OPS} ops")));
        }
        Ok(())
    }

    /// Reads an op; `None` for one that only creates or unpacks a tuple.
    fn op(&mut self, at: &At<'_>) -> Result<Option<ProgramOp>> {
        self.count_op(at)?;
        if Tuples::concerns(at.get("op")?.string()?) {
            self.tuples.read(at, &self.types)?;
            return Ok(None);
        }
        let mut operands = Vec::new();
        let mut types = Vec::new();
        for operand in at.get("operands")?.list()? {
            let id = self.tuples.tensor(&operand, id(&operand)?)?;
            types.push(self.defined(&operand, id)?.clone());
            operands.push(id);
        }
        let (results, declared) = results(at)?;
        let signature = self.signature(at, &types, &declared, 0)?;
        for (id, ty) in results.iter().zip(&declared) {
            self.define(at, *id, ty.clone())?;
        }
        Ok(Some(ProgramOp { signature, operands, results }))
    }

    /// Reads op, attributes and bodies, and checks them against operand types and declared result
    /// types.
    fn signature(
        &mut self,
        at: &At<'_>,
        operands: &[TensorType],
        declared: &[TensorType],
        depth: usize,
    ) -> Result<Arc<Signature>> {
        let name = at.get("op")?;
        let text = name.string()?;
        let op = OpCode::from_name(text)
            .filter(|_| text.contains('.'))
            .ok_or_else(|| ProgramError::of(name.path.clone(), Problem::UnknownOp(text.to_owned())))?;
        let attrs = attributes(&at.get("attrs")?, op, declared)?;
        let mut bodies = Vec::new();
        if let Some(list) = at.find("regions")? {
            for body in list.list()? {
                bodies.push(self.body(&body, depth + 1)?);
            }
        }
        let refuse = |error| ProgramError::of(at.path.clone(), Problem::Op(error));
        let signature = Signature::infer(op, attrs, &bodies, operands).map_err(refuse)?;
        if signature.results() != declared {
            return Err(at.get("results")?.error(format!(
                "{text} is declared to return {declared:?}, but its operands and attributes give {:?}",
                signature.results()
            )));
        }
        Ok(Arc::new(signature))
    }

    fn body(&mut self, at: &At<'_>, depth: usize) -> Result<Arc<Body>> {
        if depth > MAX_BODY_DEPTH {
            return Err(at.error(format!("regions nest more than {MAX_BODY_DEPTH} deep")));
        }
        let mut graph = Graph::new();
        let mut inside: HashMap<ProgramId, Ref> = HashMap::new();
        for arg in at.get("args")?.list()? {
            let (id, ty) = (id(&arg.get("id")?)?, ty(&arg)?);
            self.define(&arg, id, ty.clone())?;
            inside.insert(id, graph.param(ty));
        }
        for op in at.get("ops")?.list()? {
            self.count_op(&op)?;
            let mut operands = Vec::new();
            let mut types = Vec::new();
            for operand in op.get("operands")?.list()? {
                operands.push(self.resolve(&operand, &mut graph, &mut inside)?);
                types.push(self.types[&self.tuples.tensor(&operand, id(&operand)?)?].clone());
            }
            let (results, declared) = results(&op)?;
            let signature = self.signature(&op, &types, &declared, depth)?;
            let made = graph.push_signature(signature, operands.into());
            for ((id, ty), value) in results.iter().zip(declared).zip(made) {
                self.define(&op, *id, ty)?;
                inside.insert(*id, value);
            }
        }
        let mut returns = Vec::new();
        for value in at.get("returns")?.list()? {
            returns.push(self.resolve(&value, &mut graph, &mut inside)?);
        }
        Body::new(graph, &returns).map(Arc::new).ok_or_else(|| at.error("a return does not exist"))
    }

    /// A value used in a body: one of the body, or a constant from outside, which is copied into
    /// the body.
    fn resolve(&self, at: &At<'_>, graph: &mut Graph, inside: &mut HashMap<ProgramId, Ref>) -> Result<Ref> {
        let id = self.tuples.tensor(at, id(at)?)?;
        if let Some(&value) = inside.get(&id) {
            return Ok(value);
        }
        let Some(data) = self.data.get(&id) else {
            self.defined(at, id)?;
            return Err(at.error(format!(
                "id {} is computed outside the region, which can only use constants from there; \
                 make it an operand of the op and an argument of its regions",
                id.0
            )));
        };
        let attrs = crate::op::attrs::constant(data.clone());
        let made = graph
            .push(OpCode::Constant, attrs, &[], &[])
            .map_err(|error| ProgramError::of(at.path.clone(), Problem::Op(error)))?;
        inside.insert(id, made[0]);
        Ok(made[0])
    }
}

fn results(at: &At<'_>) -> Result<(Vec<ProgramId>, Vec<TensorType>)> {
    let mut ids = Vec::new();
    let mut types = Vec::new();
    for result in at.get("results")?.list()? {
        ids.push(id(&result.get("id")?)?);
        types.push(ty(&result)?);
    }
    Ok((ids, types))
}

/// Puts named attributes into schema order. An attribute that StableHLO writes as a result type
/// comes from the last declared result: the only result, or the bits of a generator.
fn attributes(at: &At<'_>, op: OpCode, declared: &[TensorType]) -> Result<Attrs> {
    let schema = op.def().attrs;
    for key in at.keys() {
        if !schema.iter().any(|def| def.name == key && def.presence != Presence::FromResult) {
            return Err(at.error(format!("{op} has no attribute {key:?}")));
        }
    }
    let from_result = |def: &AttrDef| {
        let ty = declared.last().ok_or_else(|| at.error(format!("{op} has no result")))?;
        Ok(def.of_result(ty))
    };
    schema
        .iter()
        .map(|def| match (def.presence, at.find(def.name)?) {
            (Presence::FromResult, _) => from_result(def),
            (Presence::Optional, None) => Ok(AttrValue::Absent),
            (_, Some(value)) => attribute(&value, def.kind),
            (Presence::Required, None) => Err(at.error(format!("{op} needs the attribute {:?}", def.name))),
        })
        .collect()
}

fn attribute(at: &At<'_>, kind: AttrKind) -> Result<AttrValue> {
    let member = |at: &At<'_>, members: &[&str]| {
        let name = at.string()?;
        match members.iter().position(|member| *member == name) {
            Some(index) => Ok(index as u8),
            None => Err(at.error(format!("{name:?} is not one of {}", members.join(", ")))),
        }
    };
    Ok(match kind {
        AttrKind::Int | AttrKind::Int32 => AttrValue::Int(at.int()?),
        AttrKind::Bool | AttrKind::Unit => AttrValue::Bool(at.boolean()?),
        AttrKind::Float => at.float()?.into(),
        AttrKind::Ints => AttrValue::Ints(at.ints()?.into()),
        AttrKind::Bools => AttrValue::Bools(at.list()?.iter().map(At::boolean).collect::<Result<_>>()?),
        AttrKind::Pairs => {
            let mut pairs = Pairs::new();
            for pair in at.list()? {
                match pair.ints()?.as_slice() {
                    &[low, high] => pairs.push((low, high)),
                    _ => return Err(pair.error("a pair is two integers")),
                }
            }
            AttrValue::Pairs(pairs)
        }
        AttrKind::Groups => {
            let rows: Vec<Vec<i64>> = at.list()?.iter().map(At::ints).collect::<Result<_>>()?;
            if rows.iter().any(|row| row.len() != rows[0].len()) {
                return Err(at.error("groups must be rows of one length, with shorter ones padded with -1"));
            }
            AttrValue::Groups(Groups::new(&rows))
        }
        AttrKind::Enum(def) => AttrValue::Enum(member(at, def.members)?),
        AttrKind::Enums(def) => {
            AttrValue::Enums(at.list()?.iter().map(|at| member(at, def.members)).collect::<Result<_>>()?)
        }
        AttrKind::Struct(def) if at.find("mlir")?.is_some() => written_struct(&at.get("mlir")?, def)?,
        AttrKind::Struct(def) => {
            for key in at.keys() {
                if !def.fields.iter().any(|field| field.name == key) {
                    return Err(at.error(format!("{key:?} is not a member of this attribute")));
                }
            }
            let values = def.fields.iter().map(|field| attribute(&at.get(field.name)?, field.kind));
            AttrValue::Struct(values.collect::<Result<_>>()?)
        }
        AttrKind::DType => AttrValue::DType(dtype(at)?),
        AttrKind::Shape => {
            let dims = at.ints()?;
            let dims: Option<Vec<u64>> = dims.iter().map(|&dim| u64::try_from(dim).ok()).collect();
            let dims = dims.ok_or_else(|| at.error("sizes must be at least 0"))?;
            AttrValue::Shape(Shape::new(&dims).map_err(|error| at.error(error.to_string()))?)
        }
        AttrKind::Dense => {
            let data = literal(at)?;
            if data.ty().bytes().0 > MAX_CONSTANT_BYTES {
                return Err(at.error(format!("a constant has at most {MAX_CONSTANT_BYTES} bytes")));
            }
            AttrValue::Dense(Arc::new(data))
        }
        AttrKind::Name => AttrValue::Name(at.string()?.into()),
        AttrKind::Config => {
            let entries: Vec<_> =
                at.keys().map(|key| Ok((key, config_value(&at.get(key)?)?))).collect::<Result<_>>()?;
            AttrValue::Config(Config::of(entries))
        }
    })
}

/// A value of a handler's configuration.
fn config_value(at: &At<'_>) -> Result<ConfigValue> {
    Ok(match at.value {
        Value::Bool(value) => (*value).into(),
        Value::Number(number) if number.is_f64() => at.number()?.into(),
        Value::Number(_) => at.int()?.into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(_) => at.ints()?.as_slice().into(),
        Value::Object(_) => f64::from(at.get("float")?.float()?).into(),
        Value::Null => return Err(at.error("a handler takes flags, numbers, names and lists of integers")),
    })
}

/// A group of integer lists in MLIR's form: `#chlo.ragged_dot<lhs_ragged_dimensions = [0], ...>`.
/// Missing lists are empty.
fn written_struct(at: &At<'_>, def: &StructDef) -> Result<AttrValue> {
    let refuse = || at.error(format!("expected #chlo.{}<NAME = [INTEGERS], ...>", def.mnemonic));
    let inside =
        at.string()?.split_once(&format!(".{}<", def.mnemonic)).and_then(|(_, rest)| rest.strip_suffix('>'));
    let mut values = vec![AttrValue::Ints(Ints::new()); def.fields.len()];
    // Each part is a name and a bracketed list.
    for part in inside.ok_or_else(refuse)?.split_inclusive(']') {
        let (name, list) = part.split_once('=').ok_or_else(refuse)?;
        let name = name.trim_start_matches([',', ' ']).trim_end();
        let field = def.fields.iter().position(|field| field.name == name && field.kind == AttrKind::Ints);
        let field = field.ok_or_else(|| at.error(format!("{name:?} is not a member of this attribute")))?;
        let list =
            list.trim().strip_prefix('[').and_then(|list| list.strip_suffix(']')).ok_or_else(refuse)?;
        let ints = list.split(',').map(str::trim).filter(|int| !int.is_empty());
        let ints: Option<Ints> = ints.map(|int| int.parse().ok()).collect();
        values[field] = AttrValue::Ints(ints.ok_or_else(refuse)?);
    }
    Ok(AttrValue::Struct(values.into()))
}
