//! The pretty forms: those that [`super::syntax`] describes in a line, and the few with a syntax of
//! their own.

use std::sync::Arc;

use super::build::OpenBody;
use super::dense::Dense;
use super::error::{Problem, Result, Shown};
use super::module::Reader;
use super::op::{ParsedOp, ParsedOpKind, ResultNames, kind};
use super::scan::{fault, other};
use super::types::TypeClause;
use crate::attr::{AttrDef, AttrValue, Ints};
use crate::ir::{Body, OpCode};
use crate::op::{OpDef, attrs as build};
use crate::shape::TensorType;

impl<'t> Reader<'t> {
    /// Reads an op in a form of [`super::syntax`].
    pub(super) fn formatted(&mut self, said: &mut ParsedOp<'t>, format: &str) -> Result<()> {
        let mut items = format.split(' ');
        while let Some(item) = items.next() {
            match item {
                "%" => said.operands.push(self.operand()?),
                "%*" => self.comma_operands(&mut said.operands)?,
                "[" => {
                    let first = items.next().unwrap_or("");
                    if !self.scan.eat_literal(first) {
                        items.by_ref().find(|&item| item == "]");
                    }
                }
                "]" => {}
                "!window" => self.window(said)?,
                "!dot" => self.dot(said)?,
                "!format" => self.precision(said)?,
                "!ranges" => self.ranges(said)?,
                _ => match item.strip_prefix('$') {
                    Some(name) => {
                        let def = attr_def(said.def, name);
                        let value = self.scan.attribute(def.kind)?;
                        said.set(name, value)?;
                    }
                    None if self.scan.eat_literal(item) => {}
                    None => return Err(self.scan.expected(format!("`{item}`"))),
                },
            }
        }
        Ok(())
    }

    /// Reads `{stride = [1, 2], pad = [[1, 1], [0, 1]], lhs_dilate = [1, 1], rhs_dilate = [1, 1],
    /// reverse = [false, false]}`.
    fn window(&mut self, said: &mut ParsedOp<'t>) -> Result<()> {
        const NAMES: [(&str, &str); 5] = [
            ("stride", "window_strides"),
            ("pad", "padding"),
            ("lhs_dilate", "lhs_dilation"),
            ("rhs_dilate", "rhs_dilation"),
            ("reverse", "window_reversal"),
        ];
        self.scan.dictionary(|scan, key, at| {
            let Some((_, name)) = NAMES.iter().find(|(short, _)| *short == key) else {
                return Err(other(at, format!("a window has no {}", Shown(key))));
            };
            let value = scan.attribute(attr_def(said.def, name).kind)?;
            said.stated.set(said.def.attrs, name, value, at)
        })
    }

    /// Reads `, batching_dims = [0] x [0], contracting_dims = [1] x [0], precision = [...],
    /// algorithm = <...>`. Only the second part is required.
    fn dot(&mut self, said: &mut ParsedOp<'t>) -> Result<()> {
        let mut dims: [Option<[Ints; 2]>; 2] = [None, None];
        while self.scan.eat(",") {
            let at = self.scan.place();
            let word = self.scan.word().unwrap_or("");
            let attr = match word {
                "batching_dims" | "contracting_dims" => None,
                "precision" => Some("precision_config"),
                "algorithm" => Some("algorithm"),
                _ => {
                    self.scan.back_to(at);
                    return Err(self
                        .scan
                        .expected("batching_dims, contracting_dims, precision or algorithm"));
                }
            };
            self.scan.expect("=")?;
            if let Some(name) = attr {
                let value = self.scan.attribute(attr_def(said.def, name).kind)?;
                said.stated.set(said.def.attrs, name, value, at)?;
                continue;
            }
            let lhs = self.scan.integers()?;
            self.scan.expect("x")?;
            let rhs = self.scan.integers()?;
            let slot = &mut dims[usize::from(word == "contracting_dims")];
            if slot.replace([lhs, rhs]).is_some() {
                return Err(other(at, format!("{word} is given twice")));
            }
        }
        let [batching, contracting] = dims.map(Option::unwrap_or_default);
        let lists = batching.into_iter().chain(contracting).map(AttrValue::Ints);
        said.set("dot_dimension_numbers", AttrValue::Struct(lists.collect()))
    }

    /// Reads `e5m10`.
    fn precision(&mut self, said: &mut ParsedOp<'t>) -> Result<()> {
        let at = self.scan.place();
        let word = self.scan.word().unwrap_or("");
        let bits = word.strip_prefix('e').and_then(|rest| rest.split_once('m'));
        let parsed = bits.and_then(|(exponent, mantissa)| {
            Some((exponent.parse::<u32>().ok()?, mantissa.parse::<u32>().ok()?))
        });
        let Some((exponent, mantissa)) = parsed else {
            self.scan.back_to(at);
            return Err(self.scan.expected("exponent and mantissa bits such as `e5m10`"));
        };
        said.set("exponent_bits", i64::from(exponent).into())?;
        said.set("mantissa_bits", i64::from(mantissa).into())
    }

    /// Reads `[0:2, 1:3:2]`.
    fn ranges(&mut self, said: &mut ParsedOp<'t>) -> Result<()> {
        let (mut starts, mut limits, mut strides) = (Ints::new(), Ints::new(), Ints::new());
        self.scan.list(["[", "]"], |scan| {
            starts.push(scan.integer()?);
            scan.expect(":")?;
            limits.push(scan.integer()?);
            strides.push(if scan.eat(":") { scan.integer()? } else { 1 });
            Ok(())
        })?;
        for (name, list) in [("start_indices", starts), ("limit_indices", limits), ("strides", strides)] {
            said.set(name, AttrValue::Ints(list))?;
        }
        Ok(())
    }

    /// Reads `dense<...> : type`, after optional attributes.
    pub(super) fn pretty_constant(&mut self, mut said: ParsedOp<'t>, names: ResultNames<'t>) -> Result<()> {
        self.attribute_dictionary(&mut said)?;
        let place = self.scan.place();
        // A constant in a function with several calls is read and kept once.
        if let Some((signature, end)) = self.constants.get(&place) {
            let signature = signature.clone();
            self.scan.back_to(*end);
            self.scan.location()?;
            let made = self.build.add(signature, &[], place)?;
            return self.bind(names, &made, place);
        }
        let data = self.scan.dense()?;
        let end = self.scan.place();
        self.scan.location()?;
        let (data, ty) = match data {
            Dense::Full(data) => (data, None),
            Dense::Splat(element, ty) => (element, Some(ty)),
        };
        let constant = self.build.infer(said.def.code, build::constant(Arc::new(data)), &[], &[], said.at)?;
        let Some(ty) = ty else {
            self.constants.insert(place, (constant.clone(), end));
            let made = self.build.add(constant, &[], said.at)?;
            return self.bind(names, &made, said.at);
        };
        // A splat becomes a scalar that is broadcast, so its size does not matter.
        let element = self.build.add(constant, &[], said.at)?;
        let attrs = build::broadcast_in_dim(ty.shape().clone(), &[]);
        let spread = self.build.infer(OpCode::BroadcastInDim, attrs, &[], &element, said.at)?;
        let made = self.build.add(spread, &element, said.at)?;
        self.bind(names, &made, said.at)
    }

    /// Reads `(%x init: %i), (%y init: %j) applies stablehlo.add across dimensions = [0] : types`,
    /// or the same with a body: `reducer(%a: type, %b: type) (%c: type, %d: type) { ... }`.
    pub(super) fn pretty_reduce(&mut self, said: &mut ParsedOp<'t>) -> Result<TypeClause> {
        let (mut inputs, mut inits) = (Vec::new(), Vec::new());
        loop {
            self.scan.expect("(")?;
            inputs.push(self.operand()?);
            self.scan.expect_word("init")?;
            self.scan.expect(":")?;
            inits.push(self.operand()?);
            self.scan.expect(")")?;
            if !self.scan.eat(",") {
                break;
            }
        }
        let element = self.build.type_of(inputs[0]).dtype();
        said.operands = [inputs, inits].concat();
        let applies = if self.scan.eat_word("applies") {
            let at = self.scan.place();
            let name = self.scan.word().unwrap_or("");
            match kind(name, at)? {
                ParsedOpKind::Row(def) => Some((at, def)),
                _ => return Err(other(at, "this is not an op that combines two elements")),
            }
        } else {
            None
        };
        self.scan.expect_word("across")?;
        self.scan.expect_word("dimensions")?;
        self.scan.expect("=")?;
        let dimensions = self.scan.integers()?;
        said.set("dimensions", AttrValue::Ints(dimensions))?;
        self.attribute_dictionary(said)?;
        let types = self.types()?;
        if let Some((at, def)) = applies {
            let body = Body::binary(def.code, TensorType::scalar(element));
            let body = body.map_err(|error| fault(at, Problem::Op(error)))?;
            said.bodies.push(OpenBody::of(&body));
            return Ok(types);
        }
        self.scan.location()?;
        self.scan.expect_word("reducer")?;
        let (mut left, mut right) = (Vec::new(), Vec::new());
        while self.scan.peek() == Some(b'(') {
            let at = self.scan.place();
            match <[_; 2]>::try_from(self.typed_names()?) {
                Ok([first, second]) => {
                    left.push(first);
                    right.push(second);
                }
                Err(_) => return Err(other(at, "a reducer must have two arguments per operand")),
            }
        }
        left.extend(right);
        self.region(said, Some(left))?;
        Ok(types)
    }

    /// Reads `(%a = %x, %b = %y) : types cond { ... } do { ... }`.
    pub(super) fn pretty_while(&mut self, said: &mut ParsedOp<'t>) -> Result<TypeClause> {
        let mut names = Vec::new();
        self.scan.expect("(")?;
        if !self.scan.eat(")") {
            loop {
                let at = self.scan.place();
                names.push((at, self.scan.value_name()?));
                self.scan.expect("=")?;
                said.operands.push(self.operand()?);
                if self.scan.eat(")") {
                    break;
                }
                self.scan.expect(",")?;
            }
        }
        let at = self.scan.place();
        let left = if self.scan.eat(":") { self.scan.bare_types()? } else { Vec::new() };
        if left.len() != names.len() {
            return Err(other(at, format!("{} types for {} values", left.len(), names.len())));
        }
        if self.scan.eat_word("attributes") {
            self.attribute_dictionary(said)?;
        }
        let args: Vec<_> =
            names.into_iter().zip(&left).map(|((at, name), ty)| (at, name, ty.clone())).collect();
        self.scan.expect_word("cond")?;
        self.region(said, Some(args.clone()))?;
        self.scan.expect_word("do")?;
        self.region(said, Some(args))?;
        Ok(TypeClause { at, left, results: None })
    }
}

/// The attribute that a form names.
fn attr_def(def: &'static OpDef, name: &str) -> &'static AttrDef {
    let found = def.attrs.iter().find(|attr| attr.name == name);
    found.unwrap_or_else(|| panic!("bug: the form of {} names {name}, which its row does not have", def.name))
}
