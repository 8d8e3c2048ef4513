//! Reads modules and functions.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::TextModule;
use super::build::{Builder, Capture};
use super::error::{Result, Shown};
use super::scan::{Scanner, other, unsupported};
use crate::ir::{Body, Ref, Refs, Signature};
use crate::shape::TensorType;
use crate::shape::listed;

/// A function of the module. It is read at each call, and its ops are inlined there.
#[derive(Clone)]
struct Function<'t> {
    /// The position after the name; in the generic form, of the region.
    start: Scanner<'t>,
    /// Length of its text in bytes.
    length: usize,
    is_generic: bool,
    is_private: bool,
    /// Whether it was read, for a caller or by itself.
    is_read: bool,
    /// Whether it is being read. It must not call itself.
    is_open: bool,
}

/// The state of the reader.
pub(super) struct Reader<'t> {
    pub(super) scan: Scanner<'t>,
    pub(super) build: Builder<'t>,
    /// Constants by their position, with the position after them. They are the same at each call of
    /// a function.
    pub(super) constants: HashMap<usize, (Arc<Signature>, usize)>,
    functions: HashMap<String, Function<'t>>,
    /// The names of the functions, in the order of the text.
    order: Vec<String>,
}

/// The arguments of a function: types and aliases.
#[derive(Default)]
struct Arguments {
    types: Vec<TensorType>,
    /// For each argument, the result that may reuse its memory.
    aliases: Vec<Option<u32>>,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str, most_ops: usize) -> Reader<'t> {
        Reader {
            scan: Scanner::new(text),
            build: Builder::new(text.len(), most_ops),
            constants: HashMap::new(),
            functions: HashMap::new(),
            order: Vec::new(),
        }
    }

    /// Reads the whole text.
    pub(super) fn module(mut self) -> Result<TextModule> {
        let name = self.find_functions()?;
        let main = self.main()?;
        let (main, aliases) = self.whole_function(&main)?;
        // Functions without callers are not part of the program, but are checked too.
        for name in std::mem::take(&mut self.order) {
            if !self.functions[&name].is_read {
                self.whole_function(&name)?;
            }
        }
        Ok(TextModule { name, main, aliases, functions: self.functions.len() })
    }

    // ----- finding functions -----

    /// Scans the text and notes the positions of functions; returns the name of the module.
    fn find_functions(&mut self) -> Result<Option<String>> {
        self.aliases()?;
        let mut name = None;
        let start = self.scan.place();
        if self.scan.eat_word("module") || self.scan.eat_word("builtin.module") {
            if self.scan.peek() == Some(b'@') {
                name = Some(self.scan.symbol()?.into_owned());
            }
            if self.scan.eat_word("attributes") {
                self.skipped_dictionary("a module")?;
            }
            self.scan.expect("{")?;
            while !self.scan.eat("}") {
                self.function_header()?;
            }
            self.scan.location()?;
        } else if self.scan.peek() == Some(b'"') && self.scan.string()? == "builtin.module" {
            self.scan.expect("(")?;
            self.scan.expect(")")?;
            if self.scan.eat("<") {
                self.scan.dictionary(|scan, key, _| match key {
                    "sym_name" => {
                        name = Some(scan.string()?.into_owned());
                        Ok(())
                    }
                    _ => scan.skip_value(),
                })?;
                self.scan.expect(">")?;
            }
            self.scan.expect("(")?;
            self.scan.expect("{")?;
            while !self.scan.eat("}") {
                self.function_header()?;
            }
            self.scan.expect(")")?;
            if self.scan.peek() == Some(b'{') {
                self.skipped_dictionary("a module")?;
            }
            self.scan.expect(":")?;
            self.scan.type_clause()?;
            self.scan.location()?;
        } else {
            self.scan.back_to(start);
            while !matches!(self.scan.peek(), Some(b'#') | None) {
                self.function_header()?;
            }
        }
        self.aliases()?;
        if self.scan.peek().is_some() {
            return Err(self.scan.expected("the end of the text"));
        }
        Ok(name)
    }

    /// Skips `#name = value`. Only locations can use these, and locations are skipped.
    fn aliases(&mut self) -> Result<()> {
        while self.scan.eat("#") {
            let at = self.scan.place();
            self.scan.word();
            self.scan.expect("=")?;
            if self.scan.peek() != Some(b'l') {
                return Err(unsupported(at, "aliases of attributes are not supported"));
            }
            self.scan.location()?;
        }
        Ok(())
    }

    /// Skips a dictionary that does not affect the computation.
    fn skipped_dictionary(&mut self, of: &str) -> Result<()> {
        let nothing = &mut super::attrs::ParsedAttrs::default();
        self.scan.attributes(of, &[], nothing)
    }

    /// Reads `func.func public @name` and skips the rest.
    fn function_header(&mut self) -> Result<()> {
        let at = self.scan.place();
        let is_generic = self.scan.peek() == Some(b'"');
        if is_generic {
            return self.generic_function_header();
        }
        if !self.scan.eat_word("func.func") && !self.scan.eat_word("func") {
            return Err(self.scan.expected("`func.func`"));
        }
        let is_private = self.scan.eat_word("private");
        if !is_private {
            let _ = self.scan.eat_word("public");
        }
        let name = self.scan.symbol()?.into_owned();
        let start = self.scan;
        self.scan.skip_brackets(false)?;
        if self.scan.eat("->") {
            if self.scan.peek() == Some(b'(') {
                self.scan.skip_brackets(false)?;
            } else {
                self.scan.ty()?;
            }
        }
        if self.scan.eat_word("attributes") {
            self.skipped_dictionary("a function")?;
        }
        if self.scan.peek() != Some(b'{') {
            return Err(unsupported(
                at,
                format!("@{} has no body: functions outside the module are not supported", Shown(&name)),
            ));
        }
        self.scan.skip_brackets(false)?;
        self.scan.location()?;
        self.add_function(name, start, false, is_private, at)
    }

    /// Reads `"func.func"() <{sym_name = "name", ...}> ({ ... }) : () -> ()`.
    fn generic_function_header(&mut self) -> Result<()> {
        let at = self.scan.place();
        if self.scan.string()? != "func.func" {
            return Err(other(at, "a module may contain only functions (`func.func`)"));
        }
        self.scan.expect("(")?;
        self.scan.expect(")")?;
        let (mut name, mut is_private) = (None, false);
        let mut properties = |scan: &mut Scanner<'t>| {
            scan.dictionary(|scan, key, _| {
                match key {
                    "sym_name" => name = Some(scan.string()?.into_owned()),
                    "sym_visibility" => is_private = scan.string()? != "public",
                    // The type is that of the block. Attributes of arguments do not affect the
                    // computation.
                    _ => scan.skip_value()?,
                }
                Ok(())
            })
        };
        if self.scan.eat("<") {
            properties(&mut self.scan)?;
            self.scan.expect(">")?;
        }
        self.scan.expect("(")?;
        let start = self.scan;
        self.scan.skip_brackets(false)?;
        self.scan.expect(")")?;
        if self.scan.peek() == Some(b'{') {
            properties(&mut self.scan)?;
        }
        self.scan.expect(":")?;
        self.scan.type_clause()?;
        self.scan.location()?;
        let Some(name) = name else { return Err(other(at, "a function needs a `sym_name`")) };
        self.add_function(name, start, true, is_private, at)
    }

    fn add_function(
        &mut self,
        name: String,
        start: Scanner<'t>,
        is_generic: bool,
        is_private: bool,
        at: usize,
    ) -> Result<()> {
        match self.functions.entry(name.clone()) {
            Entry::Occupied(_) => Err(other(at, format!("there are two functions @{}", Shown(&name)))),
            Entry::Vacant(vacant) => {
                let length = self.scan.place().saturating_sub(at);
                vacant.insert(Function {
                    start,
                    length,
                    is_generic,
                    is_private,
                    is_read: false,
                    is_open: false,
                });
                self.order.push(name);
                Ok(())
            }
        }
    }

    /// The entry function: `main`, or the only function that is not private.
    fn main(&mut self) -> Result<String> {
        if self.functions.contains_key("main") {
            return Ok("main".to_owned());
        }
        let mut public = self.order.iter().filter(|name| !self.functions[*name].is_private);
        match (public.next(), public.next()) {
            (Some(name), None) => Ok(name.clone()),
            (None, _) if self.order.len() == 1 => Ok(self.order[0].clone()),
            _ => {
                let words = "the module has no function @main, and not exactly one public function";
                Err(other(self.scan.place(), words))
            }
        }
    }

    // ----- reading functions -----

    /// Reads a function by itself.
    fn whole_function(&mut self, name: &str) -> Result<(Arc<Body>, Vec<Option<u32>>)> {
        self.build.open_level(Capture::Constant, 0)?;
        let (returns, arguments) = self.function(name, 0, None)?;
        let (_, body) = self.build.close_level(&returns);
        Ok((body.close(&[], false), arguments.aliases))
    }

    /// Reads a function as the body of an op; `at` is where it is named.
    pub(super) fn function_body(&mut self, name: &str, at: usize) -> Result<Arc<Body>> {
        self.build.open_level(Capture::Constant, at)?;
        let (returns, _) = self.function(name, at, None)?;
        let (_, body) = self.build.close_level(&returns);
        Ok(body.close(&[], false))
    }

    /// Inlines a function on the current level; returns its results.
    pub(super) fn inlined(&mut self, name: &str, at: usize, operands: &[Ref]) -> Result<Vec<Ref>> {
        self.function(name, at, Some(operands)).map(|(returns, _)| returns)
    }

    /// Reads a function on the current level. Its arguments are the operands, or new parameters of
    /// the graph.
    fn function(&mut self, name: &str, at: usize, operands: Option<&[Ref]>) -> Result<(Vec<Ref>, Arguments)> {
        let Some(function) = self.functions.get_mut(name) else {
            return Err(other(at, format!("there is no function @{}", Shown(name))));
        };
        if function.is_open {
            return Err(other(
                at,
                format!("@{} calls itself, directly or not; recursion is not supported", Shown(name)),
            ));
        }
        (function.is_open, function.is_read) = (true, true);
        let function = function.clone();
        self.build.count_call(function.length, at)?;
        let back = std::mem::replace(&mut self.scan, function.start);
        self.build.open_frame(true, at)?;
        let read = if function.is_generic {
            self.generic_function(at, operands)
        } else {
            self.pretty_function(name, at, operands)
        };
        let read = read?;
        self.build.close_frame();
        self.scan = back;
        if let Some(function) = self.functions.get_mut(name) {
            function.is_open = false;
        }
        Ok(read)
    }

    /// Reads `(%a: type {attributes}, ...) -> (type {attributes}, ...) { ... }`.
    fn pretty_function(
        &mut self,
        name: &str,
        at: usize,
        operands: Option<&[Ref]>,
    ) -> Result<(Vec<Ref>, Arguments)> {
        let mut arguments = Arguments::default();
        let mut names = Vec::new();
        self.scan.list(["(", ")"], |scan| {
            let place = scan.place();
            let name = scan.value_name()?;
            scan.expect(":")?;
            arguments.types.push(scan.ty()?);
            names.push((place, name));
            let mut alias = None;
            if scan.peek() == Some(b'{') {
                alias = argument_attributes(scan)?;
            }
            arguments.aliases.push(alias);
            scan.location()
        })?;
        let mut declared = Vec::new();
        let clause = self.scan.place();
        if self.scan.eat("->") {
            if self.scan.peek() == Some(b'(') {
                self.scan.list(["(", ")"], |scan| {
                    declared.push(scan.ty()?);
                    if scan.peek() == Some(b'{') { argument_attributes(scan).map(drop) } else { Ok(()) }
                })?;
            } else {
                declared.push(self.scan.ty()?);
            }
        }
        if self.scan.eat_word("attributes") {
            self.skipped_dictionary("a function")?;
        }
        let values = self.arguments(name, at, &arguments.types, operands)?;
        for ((place, name), value) in names.into_iter().zip(values) {
            self.build.name(name, Refs::from_slice(&[value]), place)?;
        }
        self.scan.expect("{")?;
        let returns = self.operations("}")?;
        self.check_types(clause, &returns, &declared)?;
        Ok((returns, arguments))
    }

    /// Reads `{ ^bb0(%a: type, ...): ... }`.
    fn generic_function(&mut self, at: usize, operands: Option<&[Ref]>) -> Result<(Vec<Ref>, Arguments)> {
        self.scan.expect("{")?;
        let names = self.block_arguments()?;
        let types: Vec<TensorType> = names.iter().map(|(_, _, ty)| ty.clone()).collect();
        let values = self.arguments("the function", at, &types, operands)?;
        for ((place, name, _), value) in names.into_iter().zip(values) {
            self.build.name(name, Refs::from_slice(&[value]), place)?;
        }
        let returns = self.operations("}")?;
        let aliases = vec![None; types.len()];
        Ok((returns, Arguments { types, aliases }))
    }

    /// The values of a function's arguments.
    fn arguments(
        &mut self,
        name: &str,
        at: usize,
        types: &[TensorType],
        operands: Option<&[Ref]>,
    ) -> Result<Vec<Ref>> {
        let Some(operands) = operands else {
            return Ok(types.iter().map(|ty| self.build.param(ty.clone())).collect());
        };
        let given: Vec<TensorType> = operands.iter().map(|&operand| self.build.type_of(operand)).collect();
        if given == types {
            return Ok(operands.to_vec());
        }
        Err(other(
            at,
            format!("@{} takes {}, but the call gives {}", Shown(name), listed(types), listed(&given)),
        ))
    }
}

/// Reads the attributes of an argument or a result: the result that may reuse its memory, if given.
fn argument_attributes(scan: &mut Scanner<'_>) -> Result<Option<u32>> {
    let mut alias = None;
    scan.dictionary(|scan, key, at| match key {
        "tf.aliasing_output" => {
            let value = scan.integer()?;
            alias = Some(u32::try_from(value).map_err(|_| other(at, "an output number must be at least 0"))?);
            scan.expect(":")?;
            scan.expect_word("i32")
        }
        _ => scan.skip("an argument", key, at),
    })?;
    Ok(alias)
}
