//! Attributes: values by their kind in the op table, and dictionaries of them.
//!
//! In a dictionary (`<{dimension = 1 : i64}>`) integers have a type and enumerations a dialect. In
//! the pretty form of an op (`dim = 1`) they have neither. Both forms are accepted in both places.

use std::borrow::Cow;

use super::error::{Problem, Result, Shown};
use super::scan::{Scanner, fault, other};
use crate::attr::{AttrDef, AttrKind, AttrValue, EnumDef, Ints, Pairs, Presence, StructDef};
use crate::dtype::DType;
use crate::groups::Groups;
use crate::handler::Config;
use crate::limits::{MAX_CONSTANT_BYTES, MAX_RANK};
use crate::op::attrs::compare_for;
use crate::op::{Comparison, OpDef};
use crate::shape::TensorType;

/// Dialects whose attributes describe origin, device layout or storage, but never the computation.
const SKIPPED_DIALECTS: [&str; 5] = ["jax", "mhlo", "sdy", "tf", "xla"];

/// Attributes of `composite` that are parameters of its name. Its decomposition defines the
/// computation.
const SKIPPED_OF_COMPOSITE: [&str; 2] = ["composite_attributes", "version"];

/// The attributes of an op, by their positions in its schema.
#[derive(Default)]
pub(super) struct ParsedAttrs<'t> {
    pub(super) values: Vec<Option<AttrValue>>,
    /// The function that an attribute names: the callee of a call, or the decomposition of a
    /// composite.
    pub(super) function: Option<(usize, Cow<'t, str>)>,
}

impl<'t> ParsedAttrs<'t> {
    /// Space for the attributes of a schema, all absent.
    pub(super) fn of(schema: &[AttrDef]) -> ParsedAttrs<'t> {
        ParsedAttrs { values: vec![None; schema.len()], function: None }
    }

    /// Sets an attribute by name; `at` is its position in the text.
    pub(super) fn set(&mut self, schema: &[AttrDef], name: &str, value: AttrValue, at: usize) -> Result<()> {
        let place = schema.iter().position(|def| def.name == name);
        let slot = place.and_then(|place| self.values.get_mut(place));
        match slot {
            Some(slot @ None) => *slot = Some(value),
            Some(Some(_)) => return Err(other(at, format!("the attribute {name} is given twice"))),
            None => return Err(other(at, format!("there is no attribute {name}"))),
        }
        Ok(())
    }
}

/// The attribute of a schema with this name, if a text may contain it.
pub(super) fn stated_def(schema: &'static [AttrDef], name: &str) -> Option<&'static AttrDef> {
    schema.iter().find(|def| def.name == name && def.presence != Presence::FromResult)
}

/// StableHLO's default of an attribute; `None` if it is required.
pub(super) fn default_value(def: &OpDef, attr: &AttrDef, operands: &[TensorType]) -> Option<AttrValue> {
    let first = operands.first();
    let dims = first.map_or(0, TensorType::rank);
    let dims =
        if def.name == "convolution" || def.name == "dynamic_conv" { dims.saturating_sub(2) } else { dims };
    Some(match (attr.name, attr.kind) {
        ("compare_type", _) => compare_for(Comparison::Eq, first?.dtype()).values()[1].clone(),
        (
            "window_dimensions" | "window_strides" | "base_dilations" | "window_dilations" | "lhs_dilation"
            | "rhs_dilation",
            AttrKind::Ints,
        ) => AttrValue::Ints(vec![1; dims].into()),
        ("padding", AttrKind::Pairs) => AttrValue::Pairs(vec![(0, 0); dims].into()),
        ("window_reversal", AttrKind::Bools) => AttrValue::Bools(vec![false; dims].into()),
        (
            "indices_are_sorted" | "unique_indices" | "is_stable" | "lower" | "has_side_effect",
            AttrKind::Bool,
        ) => AttrValue::Bool(false),
        ("backend_config", AttrKind::Config) => AttrValue::Config(Config::none()),
        // The last dimension.
        ("dimension", AttrKind::Int) if def.name == "sort" => AttrValue::Int(dims as i64 - 1),
        _ => return None,
    })
}

/// The default of a member of a group.
fn default_member(field: &AttrDef) -> Option<AttrValue> {
    Some(match field.kind {
        _ if field.presence == Presence::Optional => AttrValue::Absent,
        AttrKind::Int | AttrKind::Int32 => AttrValue::Int(0),
        AttrKind::Ints => AttrValue::Ints(Ints::new()),
        _ => return None,
    })
}

/// Whether an attribute may be skipped.
fn is_skipped(op: &str, key: &str) -> bool {
    let dialect = key.split_once('.').map(|(dialect, _)| dialect);
    dialect.is_some_and(|dialect| SKIPPED_DIALECTS.contains(&dialect))
        || op == "composite" && SKIPPED_OF_COMPOSITE.contains(&key)
}

impl<'t> Scanner<'t> {
    /// The name of a dictionary entry.
    fn key(&mut self) -> Result<Cow<'t, str>> {
        if self.peek() == Some(b'"') {
            return self.string();
        }
        self.word().map(Cow::Borrowed).ok_or_else(|| self.expected("the name of an attribute"))
    }

    /// Reads a dictionary between braces; `entry` reads each value, given its key and position.
    pub(super) fn dictionary(
        &mut self,
        entry: impl FnMut(&mut Scanner<'t>, &str, usize) -> Result<()>,
    ) -> Result<()> {
        self.flagged_dictionary(entry, |_, _| false)
    }

    /// As [`Scanner::dictionary`]. A key without a value is a flag, which `flag` accepts or
    /// rejects.
    fn flagged_dictionary(
        &mut self,
        mut entry: impl FnMut(&mut Scanner<'t>, &str, usize) -> Result<()>,
        mut flag: impl FnMut(&str, usize) -> bool,
    ) -> Result<()> {
        self.list(["{", "}"], |scanner| {
            let at = scanner.place();
            let key = scanner.key()?;
            if scanner.eat("=") {
                return entry(scanner, &key, at);
            }
            if is_skipped("", &key) || flag(&key, at) {
                Ok(())
            } else {
                Err(other(at, format!("the attribute {} has no value", Shown(&key))))
            }
        })
    }

    /// Reads the attributes of an op, between braces.
    pub(super) fn attributes(
        &mut self,
        op: &str,
        schema: &'static [AttrDef],
        stated: &mut ParsedAttrs<'t>,
    ) -> Result<()> {
        let mut flags = Vec::new();
        let flag = |key: &str, at| {
            let def = stated_def(schema, key).filter(|def| def.kind == AttrKind::Unit);
            flags.extend(def.map(|def| (def.name, at)));
            def.is_some()
        };
        let entry = |scanner: &mut Scanner<'t>, key: &str, at| {
            if let Some(def) = stated_def(schema, key) {
                let value = scanner.attribute(def.kind)?;
                return stated.set(schema, key, value, at);
            }
            if matches!((op, key), ("composite", "decomposition") | ("func.call", "callee")) {
                let place = scanner.place();
                stated.function = Some((place, scanner.symbol()?));
                return Ok(());
            }
            if op == "custom_call" && key == "mhlo.backend_config" {
                let config = AttrValue::Config(scanner.config()?);
                return stated.set(schema, "backend_config", config, at);
            }
            if op == "custom_call" && scanner.convention(key)? {
                return Ok(());
            }
            scanner.skip(op, key, at)
        };
        self.flagged_dictionary(entry, flag)?;
        flags.into_iter().try_for_each(|(name, at)| stated.set(schema, name, AttrValue::Bool(true), at))
    }

    /// Skips the value of an attribute that does not affect the computation.
    pub(super) fn skip(&mut self, of: &str, key: &str, at: usize) -> Result<()> {
        let start = self.place();
        self.skip_value()?;
        // The required accuracy of a transcendental function: the library guarantees only the
        // default.
        let value = self.since(start);
        let is_default = key == "result_accuracy" && !value.contains("tol") && value.contains("<DEFAULT>");
        if is_skipped(of, key) || is_default {
            Ok(())
        } else {
            Err(other(at, format!("{of} has no attribute {}", Shown(key))))
        }
    }

    /// Reads a value of a kind.
    pub(super) fn attribute(&mut self, kind: AttrKind) -> Result<AttrValue> {
        Ok(match kind {
            AttrKind::Int | AttrKind::Int32 => {
                let value = self.integer()?;
                // In the pretty form, the colon after the value belongs to the op.
                let mut ahead = *self;
                if ahead.eat(":")
                    && ahead.word().is_some_and(|word| word.trim_start_matches(['s', 'u']).starts_with('i'))
                {
                    *self = ahead;
                }
                AttrValue::Int(value)
            }
            AttrKind::Float => {
                let bits = self.float(DType::F32)?;
                self.eat_type(&["f32"]);
                AttrValue::from(f32::from_bits(bits as u32))
            }
            AttrKind::Bool => AttrValue::Bool(self.flag()?),
            AttrKind::Unit => {
                self.expect_word("unit")?;
                AttrValue::Bool(true)
            }
            AttrKind::Ints => AttrValue::Ints(self.integers()?),
            AttrKind::Bools => AttrValue::Bools(self.flags()?.into()),
            AttrKind::Pairs => AttrValue::Pairs(self.pairs()?),
            AttrKind::Groups => {
                let (dims, ids) = self.dense_integers(2)?;
                let columns = usize::try_from(dims[1]).unwrap_or(usize::MAX).max(1);
                AttrValue::Groups(Groups::new(&ids.chunks(columns).collect::<Vec<_>>()))
            }
            AttrKind::Enum(def) => AttrValue::Enum(self.member(def)?),
            AttrKind::Enums(def) => {
                let mut members = Vec::new();
                self.list(["[", "]"], |scanner| {
                    members.push(scanner.member(def)?);
                    Ok(())
                })?;
                AttrValue::Enums(members.into())
            }
            AttrKind::Struct(def) => self.group(def)?,
            AttrKind::Dense => {
                let at = self.place();
                let data = self.dense()?.full(MAX_CONSTANT_BYTES, at)?;
                AttrValue::Dense(data.into())
            }
            AttrKind::Name => {
                let name = if self.peek() == Some(b'@') { self.symbol()? } else { self.string()? };
                AttrValue::Name(name.as_ref().into())
            }
            AttrKind::Config => AttrValue::Config(self.config()?),
            AttrKind::DType | AttrKind::Shape => {
                return Err(self.expected("an attribute that is not the type of the result"));
            }
        })
    }

    /// Consumes a colon and one of `types` after a number; returns whether they were there.
    pub(super) fn eat_type(&mut self, types: &[&str]) -> bool {
        let mut ahead = *self;
        let found = ahead.eat(":") && types.iter().any(|ty| ahead.eat_word(ty));
        if found {
            *self = ahead;
        }
        found
    }

    fn flag(&mut self) -> Result<bool> {
        match self.peek() {
            _ if self.eat_word("true") => Ok(true),
            _ if self.eat_word("false") => Ok(false),
            Some(b'0' | b'1') => Ok(self.integer()? == 1),
            _ => Err(self.expected("`true` or `false`")),
        }
    }

    /// Reads a list of items as `[...]` or `array<...: ...>`.
    fn items(&mut self, ty: &[&str], mut item: impl FnMut(&mut Scanner<'t>) -> Result<()>) -> Result<()> {
        if !self.eat_word("array") {
            return self.list(["[", "]"], |scanner| {
                item(scanner)?;
                // In older forms each element has a type.
                if scanner.eat(":") && scanner.word().is_none() {
                    return Err(scanner.expected("a type"));
                }
                Ok(())
            });
        }
        self.expect("<")?;
        if !self.word().is_some_and(|word| ty.contains(&word)) {
            return Err(self.expected(format!("`{}`", ty.join("` or `"))));
        }
        if self.eat(">") {
            return Ok(());
        }
        self.expect(":")?;
        loop {
            item(self)?;
            if self.eat(">") {
                return Ok(());
            }
            self.expect(",")?;
        }
    }

    /// Reads the elements of `dense<...>` in an attribute, which must have the given rank, as
    /// integers with the sizes. At most two per dimension are accepted.
    fn dense_integers(&mut self, rank: usize) -> Result<(Vec<u64>, Vec<i64>)> {
        let at = self.place();
        let data = self.dense()?.full(2 * MAX_RANK as u64, at)?;
        let elements = match data.dtype() {
            DType::I64 => data.to_vec::<i64>().ok(),
            DType::Bool => data.to_vec::<bool>().ok().map(|flags| flags.into_iter().map(i64::from).collect()),
            _ => None,
        };
        match elements {
            Some(elements) if data.dims().len() == rank => Ok((data.dims().to_vec(), elements)),
            _ => Err(other(
                at,
                format!("expected a tensor of {rank} dimensions of i64 or i1, found {}", data.ty()),
            )),
        }
    }

    pub(super) fn integers(&mut self) -> Result<Ints> {
        if self.at_dense() {
            return Ok(self.dense_integers(1)?.1.into());
        }
        let mut values = Ints::new();
        self.items(&["i64", "i32"], |scanner| {
            values.push(scanner.integer()?);
            Ok(())
        })?;
        Ok(values)
    }

    fn flags(&mut self) -> Result<Vec<bool>> {
        if self.at_dense() {
            return Ok(self.dense_integers(1)?.1.into_iter().map(|flag| flag != 0).collect());
        }
        let mut values = Vec::new();
        self.items(&["i1"], |scanner| {
            values.push(scanner.flag()?);
            Ok(())
        })?;
        Ok(values)
    }

    fn pairs(&mut self) -> Result<Pairs> {
        if self.at_dense() {
            let at = self.place();
            let (dims, values) = self.dense_integers(2)?;
            if dims[1] != 2 {
                return Err(other(at, format!("pairs have 2 entries each, not {}", dims[1])));
            }
            return Ok(values.as_chunks::<2>().0.iter().map(|&[low, high]| (low, high)).collect());
        }
        let mut pairs = Pairs::new();
        self.list(["[", "]"], |scanner| {
            let at = scanner.place();
            match scanner.integers()?.as_slice() {
                &[low, high] => pairs.push((low, high)),
                _ => return Err(other(at, "a pair is `[low, high]`")),
            }
            Ok(())
        })?;
        Ok(pairs)
    }

    fn at_dense(&mut self) -> bool {
        let mut ahead = *self;
        ahead.word().is_some_and(|word| word == "dense" || word == "dense_resource")
    }

    /// Reads a member of an enumeration: `LT` or `#stablehlo<comparison_direction LT>`.
    fn member(&mut self, def: &EnumDef) -> Result<u8> {
        let wrapped = self.eat("#");
        if wrapped {
            // The dialect. It is not checked, because the name of the enumeration is.
            self.word();
            self.expect("<")?;
            self.expect_word(def.name)?;
        }
        let at = self.place();
        let word = self.word();
        let Some(member) = def.members.iter().position(|&member| Some(member) == word) else {
            let found = word.map_or_else(|| "something else".to_owned(), |word| format!("`{word}`"));
            let expected = format!("one of {}", def.members.join(", "));
            return Err(fault(at, Problem::Expected { expected, found }));
        };
        if wrapped {
            self.expect(">")?;
        }
        Ok(member as u8)
    }

    /// Reads a group of attributes: `#stablehlo.dot<...>`, or only `<...>`.
    fn group(&mut self, def: &'static StructDef) -> Result<AttrValue> {
        if self.eat("#") {
            let at = self.place();
            let name = self.word().unwrap_or("");
            if name.split_once('.').is_none_or(|(_, name)| name != def.mnemonic) {
                return Err(other(at, format!("this must be `#stablehlo.{}<...>`", def.mnemonic)));
            }
        }
        let in_angles = self.eat("<");
        let value = match def.mnemonic {
            "conv" if self.peek() == Some(b'[') => self.conv_dimensions()?,
            _ => self.members(def)?,
        };
        if in_angles {
            self.expect(">")?;
        }
        Ok(value)
    }

    /// Reads `name = value, ...` up to the closing angle bracket.
    fn members(&mut self, def: &'static StructDef) -> Result<AttrValue> {
        let at = self.place();
        let mut stated = ParsedAttrs::of(def.fields);
        if !def.keyword.is_empty() {
            self.expect_word(def.keyword)?;
        }
        while self.peek() != Some(b'>') {
            let at = self.place();
            let name = self.word().unwrap_or("");
            let Some(field) = stated_def(def.fields, name) else {
                self.back_to(at);
                let names: Vec<&str> = def.fields.iter().map(|field| field.name).collect();
                return Err(self.expected(format!("one of {}", names.join(", "))));
            };
            self.expect("=")?;
            let value = self.attribute(field.kind)?;
            stated.set(def.fields, name, value, at)?;
            if !self.eat(",") && self.peek() != Some(b'>') {
                return Err(self.expected("`,` or `>`"));
            }
        }
        let values = def.fields.iter().zip(stated.values).map(|(field, value)| {
            let value = value.or_else(|| default_member(field));
            value.ok_or_else(|| other(at, format!("{} is missing", field.name)))
        });
        Ok(AttrValue::Struct(values.collect::<Result<_>>()?))
    }

    /// Reads `[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]`, the roles of the dimensions of input,
    /// kernel and output. Numbers are spatial dimensions, in a common order.
    fn conv_dimensions(&mut self) -> Result<AttrValue> {
        let mut values = Vec::new();
        for (separator, letters) in [("", ["b", "f"]), ("x", ["i", "o"]), ("->", ["b", "f"])] {
            if !separator.is_empty() {
                self.expect(separator)?;
            }
            let at = self.place();
            let mut named = [None; 2];
            let mut spatial: Vec<Option<i64>> = Vec::new();
            let mut count = 0;
            self.list(["[", "]"], |scanner| {
                let place = scanner.place();
                let slot = match scanner.word() {
                    Some(word) => {
                        letters.iter().position(|&letter| letter == word).map(|index| &mut named[index])
                    }
                    None => match usize::try_from(scanner.integer()?) {
                        Ok(index) if index < MAX_RANK => {
                            if spatial.len() <= index {
                                spatial.resize(index + 1, None);
                            }
                            spatial.get_mut(index)
                        }
                        _ => None,
                    },
                };
                match slot {
                    Some(slot @ None) => *slot = Some(count),
                    _ => {
                        return Err(other(
                            place,
                            format!(
                                "a dimension is {}, {} or the number of a spatial one, each once",
                                letters[0], letters[1]
                            ),
                        ));
                    }
                }
                count += 1;
                Ok(())
            })?;
            let spatial: Option<Ints> = spatial.into_iter().collect();
            let ([Some(first), Some(second)], Some(spatial)) = (named, spatial) else {
                return Err(other(
                    at,
                    format!(
                        "the dimensions {}, {} and spatial ones from 0 up are needed",
                        letters[0], letters[1]
                    ),
                ));
            };
            values.extend([AttrValue::Int(first), AttrValue::Int(second), AttrValue::Ints(spatial)]);
        }
        Ok(AttrValue::Struct(values.into()))
    }
}

#[cfg(test)]
mod tests {
    use crate::attr::AttrValue;
    use crate::groups::Groups;
    use crate::ir::OpCode;
    use crate::op::attrs;
    use crate::text::TextModule;

    fn attrs_of(stated: &str) -> Result<crate::Attrs, String> {
        let text = format!(
            "module {{ func.func public @main(%arg0: tensor<4xf32>) -> tensor<4xf32> {{
               %0 = \"stablehlo.all_reduce\"(%arg0) <{{{stated}}}> ({{
               ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
                 %1 = stablehlo.add %arg1, %arg2 : tensor<f32>
                 stablehlo.return %1 : tensor<f32>
               }}) : (tensor<4xf32>) -> tensor<4xf32>
               return %0 : tensor<4xf32> }} }}"
        );
        let module = TextModule::parse(&text).map_err(|error| error.to_string())?;
        let node = &module.main().graph().nodes()[0];
        assert_eq!(node.signature().op(), OpCode::AllReduce);
        Ok(node.signature().attrs().clone())
    }

    /// In JAX's form; a unit attribute is a key without a value.
    #[test]
    fn groups_channels_and_flags_are_read() {
        let groups = "replica_groups = dense<[[0, 1], [2, -1]]> : tensor<2x2xi64>";
        let two = Groups::new(&[vec![0, 1], vec![2]]);
        assert_eq!(attrs_of(groups), Ok(attrs::all_reduce(two.clone())));
        let channel = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>";
        let handle = AttrValue::Struct(Box::new([1.into(), 1.into()]));
        let wanted = crate::Attrs::from([two.into(), handle, true.into()]);
        for flag in ["use_global_device_ids", "use_global_device_ids = unit"] {
            assert_eq!(attrs_of(&format!("{channel}, {groups}, {flag}")), Ok(wanted.clone()));
        }
        let splat = attrs_of("replica_groups = dense<0> : tensor<1x1xi64>");
        assert_eq!(splat, Ok(attrs::all_reduce(Groups::all(1))));
        for (stated, wanted) in [
            (format!("{groups}, use_global_device_ids, use_global_device_ids"), "given twice"),
            (format!("{groups}, replica"), "the attribute replica has no value"),
            ("replica_groups = dense<[0, 1]> : tensor<2xi64>".to_owned(), "a tensor of 2 dimensions"),
            ("replica_groups = dense<7> : tensor<1000000x1000000xi64>".to_owned(), "too large"),
        ] {
            let error = attrs_of(&stated).expect_err("it is not right");
            assert!(error.contains(wanted), "{stated}: {error}");
        }
    }
}
