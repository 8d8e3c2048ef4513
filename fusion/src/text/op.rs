//! Reads ops: the generic form, the pretty forms, and the checks after either.

use std::sync::Arc;

use super::attrs::{ParsedAttrs, default_value};
use super::build::{Capture, OpenBody};
use super::error::{Problem, Result};
use super::module::Reader;
use super::scan::{fault, other, unsupported};
use super::syntax;
use super::types::TypeClause;
use crate::attr::{AttrValue, Attrs, Presence};
use crate::ir::{Body, OpCode, Ref, Refs};
use crate::op::OpDef;
use crate::shape::{TensorType, listed};

/// The names that an op gives to its results, each with its position and its number of results.
pub(super) type ResultNames<'t> = Vec<(usize, &'t str, usize)>;

/// A name with its type and its position.
pub(super) type TypedName<'t> = (usize, &'t str, TensorType);

/// The parsed parts of an op.
pub(super) struct ParsedOp<'t> {
    /// The position of its name.
    pub(super) at: usize,
    pub(super) def: &'static OpDef,
    pub(super) operands: Vec<Ref>,
    pub(super) stated: ParsedAttrs<'t>,
    pub(super) bodies: Vec<OpenBody>,
    /// The values that its regions captured.
    captured: Vec<Ref>,
}

/// The kind of op, from its name.
pub(super) enum ParsedOpKind {
    Row(&'static OpDef),
    Call,
    Return,
}

pub(super) fn kind(name: &str, at: usize) -> Result<ParsedOpKind> {
    match name {
        "func.call" | "call" => Ok(ParsedOpKind::Call),
        "func.return" | "return" | "stablehlo.return" => Ok(ParsedOpKind::Return),
        _ => match OpCode::from_name(name).filter(|_| name.contains('.')) {
            Some(code) => Ok(ParsedOpKind::Row(code.def())),
            None => Err(fault(at, Problem::UnknownOp(name.to_owned()))),
        },
    }
}

fn capture(def: &OpDef) -> Capture {
    match def.code {
        _ if def.captures.is_some() => Capture::Operand,
        OpCode::While => Capture::Carried,
        _ => Capture::Constant,
    }
}

impl<'t> ParsedOp<'t> {
    fn new(def: &'static OpDef, at: usize) -> ParsedOp<'t> {
        let stated = ParsedAttrs::of(def.attrs);
        ParsedOp { at, def, operands: Vec::new(), stated, bodies: Vec::new(), captured: Vec::new() }
    }

    pub(super) fn set(&mut self, name: &str, value: AttrValue) -> Result<()> {
        self.stated.set(self.def.attrs, name, value, self.at)
    }
}

impl<'t> Reader<'t> {
    /// Reads one op. If it ends its region, returns the values that it returns.
    pub(super) fn operation(&mut self) -> Result<Option<Vec<Ref>>> {
        let names = self.result_names()?;
        let at = self.scan.place();
        if self.scan.peek() == Some(b'"') {
            let name = self.scan.string()?;
            self.generic(&name, at, names)
        } else {
            let Some(name) = self.scan.word() else {
                return Err(self.scan.expected("an op"));
            };
            self.pretty(name, at, names)
        }
    }

    /// Reads `%a, %b:2 =`.
    fn result_names(&mut self) -> Result<ResultNames<'t>> {
        let mut names = Vec::new();
        let mut more = self.scan.peek() == Some(b'%');
        while more {
            let at = self.scan.place();
            let name = self.scan.value_name()?;
            let count = if self.scan.take_adjacent(b':') { self.scan.integer()? } else { 1 };
            names.push((at, name, usize::try_from(count).unwrap_or(usize::MAX)));
            more = self.scan.eat(",");
            if !more {
                self.scan.expect("=")?;
            }
        }
        Ok(names)
    }

    /// Reads a use of a value.
    pub(super) fn operand(&mut self) -> Result<Ref> {
        let at = self.scan.place();
        let name = self.scan.value_name()?;
        let index = if self.scan.take_adjacent(b'#') {
            Some(usize::try_from(self.scan.integer()?).unwrap_or(usize::MAX))
        } else {
            None
        };
        self.build.value(name, index, at)
    }

    /// Reads operands in parentheses.
    fn operands(&mut self) -> Result<Vec<Ref>> {
        let mut operands = Vec::new();
        self.scan.expect("(")?;
        if !self.scan.eat(")") {
            loop {
                operands.push(self.operand()?);
                if self.scan.eat(")") {
                    break;
                }
                self.scan.expect(",")?;
            }
        }
        Ok(operands)
    }

    // ----- the generic form -----

    /// Reads `"name"(operands) <{attributes}> ({regions}) {attributes} : (types) -> types`, after
    /// the name.
    fn generic(&mut self, name: &str, at: usize, names: ResultNames<'t>) -> Result<Option<Vec<Ref>>> {
        match kind(name, at)? {
            ParsedOpKind::Row(def) => {
                let mut said = ParsedOp::new(def, at);
                said.operands = self.operands()?;
                self.no_successors()?;
                if self.scan.eat("<") {
                    self.scan.attributes(def.name, def.attrs, &mut said.stated)?;
                    self.scan.expect(">")?;
                }
                if self.scan.eat("(") {
                    loop {
                        self.region(&mut said, None)?;
                        if self.scan.eat(")") {
                            break;
                        }
                        self.scan.expect(",")?;
                    }
                }
                self.attribute_dictionary(&mut said)?;
                let types = self.types()?;
                self.finish(said, types, names)?;
                Ok(None)
            }
            ParsedOpKind::Call => {
                let operands = self.operands()?;
                let mut stated = ParsedAttrs::default();
                if self.scan.eat("<") {
                    self.scan.attributes("func.call", &[], &mut stated)?;
                    self.scan.expect(">")?;
                }
                if self.scan.peek() == Some(b'{') {
                    self.scan.attributes("func.call", &[], &mut stated)?;
                }
                let Some((place, callee)) = stated.function else {
                    return Err(other(at, "a call must name its function with `callee = @name`"));
                };
                self.call(&callee, place, operands, names)?;
                Ok(None)
            }
            ParsedOpKind::Return => {
                let operands = self.operands()?;
                let types = self.types()?;
                self.check_types(at, &operands, &types.left)?;
                self.scan.location()?;
                Ok(Some(operands))
            }
        }
    }

    fn no_successors(&mut self) -> Result<()> {
        match self.scan.peek() {
            Some(b'[') => {
                let at = self.scan.place();
                Err(unsupported(at, "control flow between blocks is not supported"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn attribute_dictionary(&mut self, said: &mut ParsedOp<'t>) -> Result<()> {
        match self.scan.peek() {
            Some(b'{') => self.scan.attributes(said.def.name, said.def.attrs, &mut said.stated),
            _ => Ok(()),
        }
    }

    pub(super) fn types(&mut self) -> Result<TypeClause> {
        self.scan.expect(":")?;
        self.scan.type_clause()
    }

    // ----- regions -----

    /// Reads a region in braces. `args` are its arguments if the op names them; otherwise they are
    /// at its beginning.
    pub(super) fn region(&mut self, said: &mut ParsedOp<'t>, args: Option<Vec<TypedName<'t>>>) -> Result<()> {
        let at = self.scan.place();
        self.scan.expect("{")?;
        self.build.open_level(capture(said.def), at)?;
        self.build.open_frame(false, at)?;
        let args = match args {
            Some(args) => args,
            None => self.block_arguments()?,
        };
        for (at, name, ty) in args {
            let value = self.build.param(ty);
            self.build.name(name, Refs::from_slice(&[value]), at)?;
        }
        // All regions of an op capture the same values, so each starts with the captures of those
        // before.
        self.build.capture_all(&said.captured)?;
        let returns = self.operations("}")?;
        self.build.close_frame();
        let (captured, body) = self.build.close_level(&returns);
        said.captured = captured;
        said.bodies.push(body);
        Ok(())
    }

    /// Reads `^bb0(%a: type, ...):`, if it is there.
    pub(super) fn block_arguments(&mut self) -> Result<Vec<TypedName<'t>>> {
        let mut names = Vec::new();
        if self.scan.eat("^") {
            self.scan.suffix("the name of a block")?;
            if self.scan.peek() == Some(b'(') {
                names = self.typed_names()?;
            }
            self.scan.expect(":")?;
        }
        Ok(names)
    }

    /// Reads `(%a: type, %b: type)`.
    pub(super) fn typed_names(&mut self) -> Result<Vec<TypedName<'t>>> {
        let mut names = Vec::new();
        self.scan.list(["(", ")"], |scan| {
            let at = scan.place();
            let name = scan.value_name()?;
            scan.expect(":")?;
            names.push((at, name, scan.ty()?));
            scan.location()
        })?;
        Ok(names)
    }

    /// Reads ops up to the one that returns, and the closing bracket; returns the returned values.
    pub(super) fn operations(&mut self, close: &str) -> Result<Vec<Ref>> {
        loop {
            if matches!(self.scan.peek(), Some(b'}') | None) {
                return Err(self.scan.expected("an op; a region ends with a `return`"));
            }
            if self.scan.peek() == Some(b'^') {
                let at = self.scan.place();
                return Err(unsupported(at, "regions of more than one block are not supported"));
            }
            if let Some(returns) = self.operation()? {
                self.scan.expect(close)?;
                return Ok(returns);
            }
        }
    }

    // ----- the pretty forms -----

    fn pretty(&mut self, name: &str, at: usize, names: ResultNames<'t>) -> Result<Option<Vec<Ref>>> {
        match kind(name, at)? {
            ParsedOpKind::Row(def) => {
                let mut said = ParsedOp::new(def, at);
                let types = match syntax::format(def.name) {
                    "!while" => self.pretty_while(&mut said)?,
                    "!reduce" => self.pretty_reduce(&mut said)?,
                    "!constant" => return self.pretty_constant(said, names).map(|()| None),
                    format => {
                        self.formatted(&mut said, format)?;
                        self.attribute_dictionary(&mut said)?;
                        self.types()?
                    }
                };
                self.finish(said, types, names)?;
                Ok(None)
            }
            ParsedOpKind::Call => {
                let place = self.scan.place();
                let callee = self.scan.symbol()?;
                let operands = self.operands()?;
                if self.scan.peek() == Some(b'{') {
                    self.scan.attributes("func.call", &[], &mut ParsedAttrs::default())?;
                }
                self.call(&callee, place, operands, names)?;
                Ok(None)
            }
            ParsedOpKind::Return => {
                let mut operands = Vec::new();
                if self.scan.peek() == Some(b'%') {
                    self.comma_operands(&mut operands)?;
                    self.scan.expect(":")?;
                    let types = self.scan.bare_types()?;
                    self.check_types(at, &operands, &types)?;
                }
                self.scan.location()?;
                Ok(Some(operands))
            }
        }
    }

    /// Reads operands separated by commas, and the comma after them if no operand follows it.
    pub(super) fn comma_operands(&mut self, operands: &mut Vec<Ref>) -> Result<()> {
        while self.scan.peek() == Some(b'%') {
            operands.push(self.operand()?);
            if !self.scan.eat(",") {
                break;
            }
        }
        Ok(())
    }

    // ----- checks -----

    /// Checks that values have the declared types.
    pub(super) fn check_types(&self, at: usize, values: &[Ref], declared: &[TensorType]) -> Result<()> {
        let types: Vec<TensorType> = values.iter().map(|&value| self.build.type_of(value)).collect();
        if types == declared {
            return Ok(());
        }
        Err(other(
            at,
            format!("the declared types are {}, but the values are {}", listed(declared), listed(&types)),
        ))
    }

    /// The declared types of operands and results; the short forms omit some.
    fn declared(&self, said: &ParsedOp<'_>, types: TypeClause) -> Result<Vec<TensorType>> {
        let TypeClause { at, left, results } = types;
        let check = |declared: &[TensorType]| self.check_types(at, &said.operands, declared);
        if let Some(results) = results {
            check(&left)?;
            return Ok(results);
        }
        match (said.def.name, left.as_slice()) {
            // One type per value that passes through.
            ("while" | "optimization_barrier", _) => {
                check(&left)?;
                Ok(left)
            }
            ("select", [pred, other]) => {
                check(&[pred.clone(), other.clone(), other.clone()])?;
                Ok(vec![other.clone()])
            }
            // The type of the result, from which those of the parts follow.
            ("complex", [_]) => Ok(left),
            (_, [ty]) => {
                check(&vec![ty.clone(); said.operands.len()])?;
                Ok(left)
            }
            _ => Err(other(
                at,
                "the types of an op are one type, or those of the operands, an arrow and those of the results",
            )),
        }
    }

    /// Checks an op, adds it and names its results.
    fn finish(&mut self, said: ParsedOp<'t>, types: TypeClause, names: ResultNames<'t>) -> Result<()> {
        self.scan.location()?;
        let clause_at = types.at;
        let declared = self.declared(&said, types)?;
        let ParsedOp { at, def, mut operands, stated, bodies, captured } = said;
        let mut bodies = self.closed(def, bodies, &captured);
        if let (OpCode::Composite, Some((place, function))) = (def.code, &stated.function) {
            bodies.push(self.function_body(function, *place)?);
        }
        operands.extend(&captured);
        let operand_types: Vec<TensorType> =
            operands.iter().map(|&operand| self.build.type_of(operand)).collect();
        let attrs = complete(def, stated, &operand_types, &declared, at)?;
        let signature = self.build.infer(def.code, attrs, &bodies, &operands, at)?;
        // The captured values that a loop carries are results too, but have no names.
        let results = signature.results();
        let visible = if capture(def) == Capture::Carried {
            results.len().saturating_sub(captured.len())
        } else {
            results.len()
        };
        if results[..visible] != declared {
            let (declared, results) = (listed(&declared), listed(&results[..visible]));
            return Err(other(
                clause_at,
                format!(
                    "{} is declared to return {declared}, but its operands and attributes give {results}",
                    def.name
                ),
            ));
        }
        let made = self.build.add(signature, &operands, at)?;
        self.bind(names, &made[..visible], at)
    }

    /// Closes the bodies of an op, all with the same captures.
    fn closed(&self, def: &OpDef, bodies: Vec<OpenBody>, captured: &[Ref]) -> Vec<Arc<Body>> {
        let types: Vec<TensorType> = captured.iter().map(|&value| self.build.type_of(value)).collect();
        let carried = capture(def) == Capture::Carried;
        let close = |(index, body): (usize, OpenBody)| {
            // The second body of a loop returns the carried values of the next iteration.
            body.close(&types, carried && index == 1)
        };
        bodies.into_iter().enumerate().map(close).collect()
    }

    /// Names the results of an op.
    pub(super) fn bind(&mut self, names: ResultNames<'t>, results: &[Ref], at: usize) -> Result<()> {
        let named: usize = names.iter().fold(0, |sum, (_, _, count)| sum.saturating_add(*count));
        if named != results.len() && !names.is_empty() {
            return Err(other(at, format!("{named} results are named, but the op has {}", results.len())));
        }
        let mut rest = results;
        for (at, name, count) in names {
            let (these, after) = rest.split_at(count);
            self.build.name(name, Refs::from_slice(these), at)?;
            rest = after;
        }
        Ok(())
    }

    /// Inlines a call.
    fn call(&mut self, callee: &str, at: usize, operands: Vec<Ref>, names: ResultNames<'t>) -> Result<()> {
        let types = self.types()?;
        self.scan.location()?;
        self.check_types(types.at, &operands, &types.left)?;
        let Some(declared) = types.results else {
            return Err(other(
                types.at,
                "the types of a call are those of the operands, an arrow and those of the results",
            ));
        };
        let results = self.inlined(callee, at, &operands)?;
        self.check_types(types.at, &results, &declared)?;
        self.bind(names, &results, at)
    }
}

/// Puts the attributes into schema order, and adds those that follow from the results or have a
/// default.
fn complete(
    def: &'static OpDef,
    stated: ParsedAttrs<'_>,
    operands: &[TensorType],
    declared: &[TensorType],
    at: usize,
) -> Result<Attrs> {
    let values = def.attrs.iter().zip(stated.values).map(|(attr, value)| match (value, attr.presence) {
        (Some(value), _) => Ok(value),
        (None, Presence::FromResult) => {
            let result = declared.last().ok_or_else(|| other(at, format!("{} has a result", def.name)))?;
            Ok(attr.of_result(result))
        }
        (None, Presence::Optional) => Ok(AttrValue::Absent),
        (None, Presence::Required) => default_value(def, attr, operands)
            .ok_or_else(|| other(at, format!("{} needs the attribute {}", def.name, attr.name))),
    });
    values.collect()
}
