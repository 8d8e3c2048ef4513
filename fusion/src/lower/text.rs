//! Prints legalized functions as StableHLO text.

use std::fmt::Write as _;

use super::legalized::Plain;
use crate::attr::{AttrDef, AttrKind, AttrValue};
use crate::dtype::DType;
use crate::handler::{ConfigValue, TARGET_KEY};
use crate::ir::{Body, Graph, Node, OpCode, Ref, Signature};
use crate::literal::Literal;
use crate::op::Dialect;
use crate::op::attrs::custom_call_at as at;
use crate::shape::TensorType;

/// Text under construction. Writing to a `String` cannot fail, so results of `write!` are ignored.
struct Printer {
    out: String,
    /// Number of the next body, which makes names unique.
    bodies: usize,
}

macro_rules! put {
    ($printer:expr, $($arg:tt)*) => { let _ = write!($printer.out, $($arg)*); };
}

/// Name of a value of a graph: parameters are `<prefix>a<i>`, results `<prefix>r<i>`.
fn name(prefix: &str, value: Ref) -> String {
    match value {
        Ref::Param(index) => format!("%{prefix}a{index}"),
        Ref::Result(index) => format!("%{prefix}r{index}"),
    }
}

/// `tensor<2x3xf32>`.
fn ty(ty: &TensorType) -> String {
    let mut out = String::from("tensor<");
    for dim in ty.dims() {
        let _ = write!(out, "{dim}x");
    }
    out.push_str(ty.dtype().stablehlo());
    out.push('>');
    out
}

fn list<T>(items: impl IntoIterator<Item = T>, mut show: impl FnMut(T) -> String) -> String {
    items.into_iter().map(&mut show).collect::<Vec<_>>().join(", ")
}

/// Constant data. MLIR's hexadecimal form packs `bool` differently from ours, so `bool` is written
/// element by element.
fn dense(literal: &Literal) -> String {
    let bytes = literal.bytes();
    let data = if bytes.is_empty() {
        String::new()
    } else if literal.dtype() == DType::Bool {
        nested_bools(literal.dims(), bytes)
    } else {
        let mut hex = String::with_capacity(bytes.len() * 2 + 4);
        hex.push_str("\"0x");
        for byte in bytes {
            let _ = write!(hex, "{byte:02X}");
        }
        hex.push('"');
        hex
    };
    format!("dense<{data}> : {}", ty(literal.ty()))
}

fn nested_bools(dims: &[u64], bytes: &[u8]) -> String {
    match dims.split_first() {
        None => (bytes[0] != 0).to_string(),
        Some((_, rest)) => {
            let step = rest.iter().product::<u64>().max(1) as usize;
            format!("[{}]", list(bytes.chunks(step), |part| nested_bools(rest, part)))
        }
    }
}

/// An attribute of an op of a dialect: `array<i64: 0, 1>`, `#stablehlo.dot<...>`.
fn attribute(dialect: Dialect, def: &AttrDef, value: &AttrValue) -> String {
    let prefix = dialect.prefix();
    match (value, def.kind) {
        (AttrValue::Int(value), AttrKind::Int32) => format!("{value} : i32"),
        (AttrValue::Int(value), _) => format!("{value} : i64"),
        // Only written if it is true.
        (AttrValue::Bool(_), AttrKind::Unit) => "unit".to_owned(),
        (AttrValue::Bool(value), _) => value.to_string(),
        // As bits, the only spelling of infinities and NaN that MLIR accepts for a float.
        (AttrValue::Float(value), _) => format!("0x{:08X} : f32", value.get().to_bits()),
        (AttrValue::Ints(values), _) if values.is_empty() => "array<i64>".to_owned(),
        (AttrValue::Ints(values), _) => format!("array<i64: {}>", list(values, i64::to_string)),
        (AttrValue::Bools(values), _) if values.is_empty() => "array<i1>".to_owned(),
        (AttrValue::Bools(values), _) => format!("array<i1: {}>", list(values, bool::to_string)),
        (AttrValue::Pairs(pairs), _) => {
            let rows = list(pairs, |(low, high)| format!("[{low}, {high}]"));
            let rows = if pairs.is_empty() { rows } else { format!("[{rows}]") };
            format!("dense<{rows}> : tensor<{}x2xi64>", pairs.len())
        }
        (AttrValue::Groups(groups), _) => {
            let (rows, columns) = (groups.rows().len(), groups.columns());
            let row = |row: &[i64]| format!("[{}]", list(row, i64::to_string));
            let table = if rows == 0 { String::new() } else { format!("[{}]", list(groups.rows(), row)) };
            format!("dense<{table}> : tensor<{rows}x{columns}xi64>")
        }
        (AttrValue::Enum(member), AttrKind::Enum(def)) => {
            format!("#{prefix}<{} {}>", def.name, def.members[usize::from(*member)])
        }
        (AttrValue::Enums(members), AttrKind::Enums(def)) => {
            let each = |&member: &u8| format!("#{prefix}<{} {}>", def.name, def.members[usize::from(member)]);
            format!("[{}]", list(members, each))
        }
        (AttrValue::Dense(literal), _) => dense(literal),
        (AttrValue::Name(name), _) => format!("\"{name}\""),
        (AttrValue::Struct(values), AttrKind::Struct(def)) => {
            let mut fields = Vec::new();
            for (field, value) in def.fields.iter().zip(values) {
                if let Some(value) = member(dialect, field, value) {
                    fields.push(format!("{} = {value}", field.name));
                }
            }
            let space = if def.keyword.is_empty() { "" } else { " " };
            format!("#{prefix}.{}<{}{space}{}>", def.mnemonic, def.keyword, fields.join(", "))
        }
        (value, kind) => unreachable!("bug: attribute {} is {value:?}, not {kind}", def.name),
    }
}

/// A value of a handler's configuration, in the types of XLA's typed FFI.
fn config_value(value: &ConfigValue) -> String {
    match value {
        ConfigValue::Bool(value) => value.to_string(),
        ConfigValue::Int(value) => format!("{value} : i64"),
        ConfigValue::Float(value) => format!("0x{:016X} : f64", value.get().to_bits()),
        ConfigValue::Text(text) => format!("\"{text}\""),
        ConfigValue::Ints(values) if values.is_empty() => "array<i64>".to_owned(),
        ConfigValue::Ints(values) => format!("array<i64: {}>", list(values, i64::to_string)),
    }
}

/// The calling convention of a handler: its configuration, the typed FFI, and row-major operands
/// and results, whose layout XLA could otherwise change. Handlers of this process share one
/// function, which gets the name of the target.
fn convention(signature: &Signature) -> Vec<String> {
    let layout = |ty: &TensorType| {
        let order: Vec<usize> = (0..ty.rank()).rev().collect();
        let order = if order.is_empty() { String::new() } else { format!("{order:?}") };
        format!("dense<{order}> : tensor<{}xindex>", ty.rank())
    };
    let layouts = |types: &[TensorType]| format!("[{}]", list(types, layout));
    let config = signature.attrs().view().config(at::CONFIG);
    let target = signature.handler().map(|target| format!("{TARGET_KEY} = \"{}\"", target.name()));
    let entries = config.entries().iter().map(|(name, value)| format!("{name} = {}", config_value(value)));
    let entries: Vec<String> = target.into_iter().chain(entries).collect();
    vec![
        format!("backend_config = {{{}}}", entries.join(", ")),
        "api_version = 4 : i32".to_owned(),
        format!("operand_layouts = {}", layouts(signature.operands())),
        format!("result_layouts = {}", layouts(signature.results())),
    ]
}

/// A member of a group, where numbers and lists have no type.
fn member(dialect: Dialect, def: &AttrDef, value: &AttrValue) -> Option<String> {
    Some(match (value, def.kind) {
        (AttrValue::Absent, _) => return None,
        (AttrValue::Int(value), _) => value.to_string(),
        (AttrValue::Ints(values), _) => format!("[{}]", list(values, i64::to_string)),
        (AttrValue::Enum(member), AttrKind::Enum(def)) => def.members[usize::from(*member)].to_owned(),
        (value, _) => attribute(dialect, def, value),
    })
}

/// Names of a graph's values during printing.
struct Names {
    params: Vec<String>,
    results: Vec<String>,
}

impl Names {
    fn of(graph: &Graph, prefix: &str) -> Names {
        Names {
            params: (0..graph.params().len() as u32).map(|index| name(prefix, Ref::Param(index))).collect(),
            results: (0..graph.result_count() as u32).map(|index| name(prefix, Ref::Result(index))).collect(),
        }
    }

    fn get(&self, value: Ref) -> &str {
        match value {
            Ref::Param(index) => &self.params[index as usize],
            Ref::Result(index) => &self.results[index as usize],
        }
    }
}

impl Printer {
    /// A prefix that is unique in the module.
    fn prefix(&mut self) -> String {
        self.bodies += 1;
        format!("b{}_", self.bodies - 1)
    }

    fn node(&mut self, node: &Node, names: &Names, indent: usize) {
        let signature = node.signature();
        put!(self, "{:indent$}", "");
        let results = list(node.results(), |result| names.get(result).to_owned());
        if !results.is_empty() {
            put!(self, "{results} = ");
        }
        let stated = signature.def().captures.unwrap_or(node.operands().len());
        let operands = list(&node.operands()[..stated], |&operand| names.get(operand).to_owned());
        put!(self, "\"{}\"({operands})", signature.op().qualified());
        let mut attrs: Vec<String> = signature
            .stated_attrs()
            .filter(|(def, value)| def.kind != AttrKind::Unit || **value == AttrValue::Bool(true))
            .filter(|(def, _)| def.kind != AttrKind::Config)
            .map(|(def, value)| format!("{} = {}", def.name, attribute(signature.def().dialect, def, value)))
            .collect();
        if signature.op() == OpCode::CustomCall {
            attrs.extend(convention(signature));
        }
        if !attrs.is_empty() {
            put!(self, " <{{{}}}>", attrs.join(", "));
        }
        if !signature.bodies().is_empty() {
            put!(self, " (");
            let captured: Vec<&str> = match signature.def().captures {
                Some(first) => node.operands()[first..].iter().map(|&operand| names.get(operand)).collect(),
                None => Vec::new(),
            };
            for (i, body) in signature.bodies().iter().enumerate() {
                if i > 0 {
                    put!(self, ", ");
                }
                self.body(body, &captured, indent);
            }
            put!(self, ")");
        }
        let inputs = list(&signature.operands()[..stated], ty);
        let outputs = list(signature.results(), ty);
        put!(self, " : ({inputs}) -> ");
        if signature.results().len() == 1 {
            put!(self, "{outputs}\n");
        } else {
            put!(self, "({outputs})\n");
        }
    }

    /// A body. Captured values, if there are any, replace its parameters, which are then not
    /// printed.
    fn body(&mut self, body: &Body, captured: &[&str], indent: usize) {
        let prefix = self.prefix();
        let mut names = Names::of(body.graph(), &prefix);
        put!(self, "{{\n");
        if !captured.is_empty() {
            names.params = captured.iter().map(|&name| name.to_owned()).collect();
        } else if !body.graph().params().is_empty() {
            let typed = names.params.iter().zip(body.graph().params());
            let params = list(typed, |(name, param)| format!("{name}: {}", ty(param)));
            put!(self, "{:indent$}^bb0({params}):\n", "");
        }
        let inner = indent + 2;
        for node in body.graph().nodes() {
            self.node(node, &names, inner);
        }
        self.returns("stablehlo.return", body, &names, inner);
        put!(self, "{:indent$}}}", "");
    }

    fn returns(&mut self, op: &str, body: &Body, names: &Names, indent: usize) {
        let returns = list(body.returns(), |&value| names.get(value).to_owned());
        let types = list(body.return_types(), ty);
        put!(self, "{:indent$}\"{op}\"({returns}) : ({types}) -> ()\n", "");
    }
}

/// Indentation of the function's ops; ops of bodies are indented further.
const INDENT: usize = 4;

/// The text of the module, and the offset of each of the region's `nodes` nodes. `aliases` has the
/// result that may reuse the memory of each parameter.
pub(super) fn module(plain: &Plain, aliases: &[Option<u32>], nodes: usize) -> (String, Vec<usize>) {
    let graph = plain.function.graph();
    let out = String::with_capacity(256 + graph.nodes().len() * 160);
    let mut printer = Printer { out, bodies: 0 };
    let names = Names::of(graph, "");
    let typed = names.params.iter().zip(graph.params()).zip(aliases);
    let params = list(typed, |((name, param), alias)| match alias {
        Some(output) => format!("{name}: {} {{tf.aliasing_output = {output} : i32}}", ty(param)),
        None => format!("{name}: {}", ty(param)),
    });
    let types = list(plain.function.return_types(), ty);
    put!(printer, "module @region {{\n  func.func public @main({params}) -> ({types}) {{\n");
    let mut starts = Vec::with_capacity(nodes + 1);
    for (node, origin) in graph.nodes().iter().zip(&plain.origins) {
        // A node without text starts where the next one does.
        let started = origin.map_or(0, |node| node + 1);
        starts.resize(started.max(starts.len()), printer.out.len());
        printer.node(node, &names, INDENT);
    }
    starts.resize(nodes + 1, printer.out.len());
    printer.returns("func.return", &plain.function, &names, INDENT);
    put!(printer, "  }}\n}}\n");
    (printer.out, starts)
}
