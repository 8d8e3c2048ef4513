//! The printer.

use std::fmt::Write as _;

use super::{Aliases, ScalarPack};
use crate::attr::{AttrDef, AttrKind, AttrValue};
use crate::canon::CanonRegion;
use crate::dtype::DType;
use crate::graph::{Body, Graph, Node, Ref};
use crate::literal::Literal;
use crate::op::{Lowered, OpCode};
use crate::shape::TensorType;

/// Text under construction. Writing to a `String` cannot fail, so the results of `write!` are dropped.
struct Printer {
    out: String,
    /// Number of the next body or expansion, so that names are distinct.
    bodies: usize,
    /// Where the text of each node of the region starts, and where the text after the last one does; in bytes.
    starts: Vec<usize>,
}

macro_rules! put {
    ($printer:expr, $($arg:tt)*) => { let _ = write!($printer.out, $($arg)*); };
}

/// Names of a graph's values: parameters are `<prefix>a<i>`, results `<prefix>r<i>`.
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

/// Constant data. `bool` has a packed hexadecimal form in MLIR that differs from ours, so it is written out.
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

/// An attribute of an op: `array<i64: 0, 1>`, `#stablehlo.dot<...>`.
fn attribute(def: &AttrDef, value: &AttrValue) -> String {
    match (value, def.kind) {
        (AttrValue::Int(value), AttrKind::Int32) => format!("{value} : i32"),
        (AttrValue::Int(value), _) => format!("{value} : i64"),
        // Only written when it is true.
        (AttrValue::Bool(_), AttrKind::Unit) => "unit".to_owned(),
        (AttrValue::Bool(value), _) => value.to_string(),
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
            format!("#stablehlo<{} {}>", def.name, def.members[usize::from(*member)])
        }
        (AttrValue::Enums(members), AttrKind::Enums(def)) => {
            let each =
                |&member: &u8| format!("#stablehlo<{} {}>", def.name, def.members[usize::from(member)]);
            format!("[{}]", list(members, each))
        }
        (AttrValue::Dense(literal), _) => dense(literal),
        (AttrValue::Struct(values), AttrKind::Struct(def)) => {
            let mut fields = Vec::new();
            for (field, value) in def.fields.iter().zip(values) {
                if let Some(value) = member(field, value) {
                    fields.push(format!("{} = {value}", field.name));
                }
            }
            let space = if def.keyword.is_empty() { "" } else { " " };
            format!("#stablehlo.{}<{}{space}{}>", def.mnemonic, def.keyword, fields.join(", "))
        }
        (value, kind) => unreachable!("bug: attribute {} is {value:?}, not {kind}", def.name),
    }
}

/// A member of a group, where numbers and lists stand bare.
fn member(def: &AttrDef, value: &AttrValue) -> Option<String> {
    Some(match (value, def.kind) {
        (AttrValue::Absent, _) => return None,
        (AttrValue::Int(value), _) => value.to_string(),
        (AttrValue::Ints(values), _) => format!("[{}]", list(values, i64::to_string)),
        (AttrValue::Enum(member), AttrKind::Enum(def)) => def.members[usize::from(*member)].to_owned(),
        (value, _) => attribute(def, value),
    })
}

/// Names of a graph's values while it is printed.
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
    fn nodes(&mut self, graph: &Graph, names: &mut Names, indent: usize) {
        for node in graph.nodes() {
            if indent == INDENT {
                self.starts.push(self.out.len());
            }
            let signature = node.signature();
            match (signature.def().lower)(&signature.call()) {
                Lowered::Itself => self.call(node, signature.op(), names, indent),
                Lowered::As(op) => self.call(node, op, names, indent),
                Lowered::Body(body) => {
                    // Printed in place: the operands stand for its parameters, its returns for the results.
                    let prefix = self.prefix();
                    let mut inner = Names::of(body.graph(), &prefix);
                    // What an expansion consists of is printed as it stands: it may use the very op it stands for.
                    inner.params =
                        node.operands().iter().map(|&operand| names.get(operand).to_owned()).collect();
                    for node in body.graph().nodes() {
                        self.call(node, node.signature().op(), &inner, indent);
                    }
                    for (result, &returned) in node.results().zip(body.returns()) {
                        if let Ref::Result(index) = result {
                            names.results[index as usize] = inner.get(returned).to_owned();
                        }
                    }
                }
            }
        }
    }

    /// A prefix that makes names distinct from all others of the module.
    fn prefix(&mut self) -> String {
        self.bodies += 1;
        format!("b{}_", self.bodies - 1)
    }

    fn call(&mut self, node: &Node, op: OpCode, names: &Names, indent: usize) {
        let signature = node.signature();
        put!(self, "{:indent$}", "");
        let results = list(node.results(), |result| names.get(result).to_owned());
        if !results.is_empty() {
            put!(self, "{results} = ");
        }
        let stated = signature.def().captures.unwrap_or(node.operands().len());
        let operands = list(&node.operands()[..stated], |&operand| names.get(operand).to_owned());
        put!(self, "\"{}\"({operands})", op.qualified());
        let attrs: Vec<String> = signature
            .stated_attrs()
            .filter(|(def, value)| def.kind != AttrKind::Unit || **value == AttrValue::Bool(true))
            .map(|(def, value)| format!("{} = {}", def.name, attribute(def, value)))
            .collect();
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

    /// A body. Where there are captured values, they stand for its parameters, which are not printed then.
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
        self.nodes(body.graph(), &mut names, indent + 2);
        let returns = list(body.returns(), |&value| names.get(value).to_owned());
        let types = list(body.return_types(), ty);
        let inner = indent + 2;
        put!(self, "{:inner$}\"stablehlo.return\"({returns}) : ({types}) -> ()\n", "");
        put!(self, "{:indent$}}}", "");
    }

    /// Takes the lifted scalars out of the packed vector.
    fn unpack(&mut self, region: &CanonRegion, pack: &ScalarPack) {
        let vector = format!("tensor<{}xui32>", pack.len());
        let lifted = (0..).zip(region.lifted()).filter(|(_, lifted)| **lifted).map(|(i, _)| i);
        for (param, &(dtype, first)) in lifted.zip(pack.slots()) {
            let target = name("", Ref::Param(param));
            let scalar = ty(&TensorType::scalar(dtype));
            let wide = dtype.size() > 4;
            let words = if wide { 2 } else { 1 };
            let (from, to) = (first, first + words);
            put!(
                self,
                "    {target}_s = \"stablehlo.slice\"(%s) <{{start_indices = array<i64: {from}>, \
                 limit_indices = array<i64: {to}>, strides = array<i64: 1>}}> : ({vector}) -> tensor<{words}xui32>\n"
            );
            if wide {
                put!(
                    self,
                    "    {target} = \"stablehlo.bitcast_convert\"({target}_s) : (tensor<2xui32>) -> {scalar}\n"
                );
                continue;
            }
            let word = if dtype == DType::U32 { target.clone() } else { format!("{target}_w") };
            put!(self, "    {word} = \"stablehlo.reshape\"({target}_s) : (tensor<1xui32>) -> tensor<ui32>\n");
            match dtype.size() {
                4 if dtype == DType::U32 => {}
                4 => {
                    put!(
                        self,
                        "    {target} = \"stablehlo.bitcast_convert\"({word}) : (tensor<ui32>) -> {scalar}\n"
                    );
                }
                _ if dtype == DType::Bool => {
                    put!(
                        self,
                        "    {target} = \"stablehlo.convert\"({word}) : (tensor<ui32>) -> tensor<i1>\n"
                    );
                }
                _ => {
                    let narrow = format!("tensor<ui{}>", dtype.bits());
                    put!(
                        self,
                        "    {target}_n = \"stablehlo.convert\"({word}) : (tensor<ui32>) -> {narrow}\n"
                    );
                    put!(
                        self,
                        "    {target} = \"stablehlo.bitcast_convert\"({target}_n) : ({narrow}) -> {scalar}\n"
                    );
                }
            }
        }
    }
}

/// How far the ops of the region itself are indented; those of bodies are further.
const INDENT: usize = 4;

/// The whole module, and where the text of each node starts.
pub(super) fn module(region: &CanonRegion, outputs: &[u32], aliases: &Aliases) -> (String, Vec<usize>) {
    let graph = region.graph();
    let pack = ScalarPack::of(region);
    let out = String::with_capacity(256 + graph.nodes().len() * 160);
    let mut printer = Printer { out, bodies: 0, starts: Vec::with_capacity(graph.nodes().len() + 1) };
    let mut params = Vec::new();
    for (index, param) in (0..).zip(graph.params()) {
        if region.lifted()[index as usize] {
            continue;
        }
        let alias = match aliases.of(index) {
            Some(output) => format!(" {{tf.aliasing_output = {output} : i32}}"),
            None => String::new(),
        };
        params.push(format!("{}: {}{alias}", name("", Ref::Param(index)), ty(param)));
    }
    if !pack.is_empty() {
        params.push(format!("%s: tensor<{}xui32>", pack.len()));
    }
    let types = list(outputs, |&output| {
        ty(graph.type_of(Ref::Result(output)).expect("bug: asked for a result that the region does not have"))
    });

    put!(printer, "module @region {{\n  func.func public @main({}) -> ({types}) {{\n", params.join(", "));
    printer.unpack(region, &pack);
    let mut names = Names::of(graph, "");
    printer.nodes(graph, &mut names, INDENT);
    printer.starts.push(printer.out.len());
    let returns = list(outputs, |&output| names.get(Ref::Result(output)).to_owned());

    put!(printer, "    \"func.return\"({returns}) : ({types}) -> ()\n  }}\n}}\n");
    (printer.out, printer.starts)
}
