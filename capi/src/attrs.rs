//! Attributes of ops and other named values: plugin options, configuration of handler calls.
//!
//! Input: an array of [`fuseline_attr`]s in any order. Output: [`Attrs`] in the order of the op's
//! schema. Errors name unknown attributes, attributes of another kind, and missing ones. The op's
//! rule checks the values when it is recorded.

use std::collections::HashSet;
use std::ffi::{CString, c_char};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use engine::fusion::attr::{AttrDef, AttrFloat, AttrKind, AttrValue, EnumDef, Presence};
use engine::handler::{Config, ConfigFloat, ConfigValue};
use engine::{Attrs, Groups, Literal, OpCode, Shape};

use crate::error::{Fault, Result, c_text, fuseline_error, guard, guarded};
use crate::ops::{fuseline_op, op};
use crate::raw::{list, put, text};
use crate::types::{dtype, fuseline_tensor};

/// The kind of an attribute: which member of a fuseline_attr_value is set.
pub type fuseline_attr_kind = u32;

/// `integer`.
pub const FUSELINE_ATTR_INTEGER: fuseline_attr_kind = 1;
/// `real`.
pub const FUSELINE_ATTR_REAL: fuseline_attr_kind = 2;
/// `integer`, which is 0 or 1.
pub const FUSELINE_ATTR_FLAG: fuseline_attr_kind = 3;
/// `integers`, `count` of them. Shapes are lists too, and so are pairs, one after the other.
pub const FUSELINE_ATTR_INTEGERS: fuseline_attr_kind = 4;
/// `flags`, `count` bytes that are 0 or 1.
pub const FUSELINE_ATTR_FLAGS: fuseline_attr_kind = 5;
/// `text`: a member of an enumeration, or a name.
pub const FUSELINE_ATTR_TEXT: fuseline_attr_kind = 6;
/// `texts`, `count` of them.
pub const FUSELINE_ATTR_TEXTS: fuseline_attr_kind = 7;
/// `integer`, which is a fuseline_dtype.
pub const FUSELINE_ATTR_DTYPE: fuseline_attr_kind = 8;
/// `tensor`, whose data is copied.
pub const FUSELINE_ATTR_TENSOR: fuseline_attr_kind = 9;
/// `attrs`, `count` of them: a group of attributes such as the dimension numbers of a convolution.
pub const FUSELINE_ATTR_ATTRS: fuseline_attr_kind = 10;

/// The value of an attribute.
#[repr(C)]
#[derive(Clone, Copy)]
pub union fuseline_attr_value {
    /// Of INTEGER, FLAG and DTYPE.
    pub integer: i64,
    /// Of REAL.
    pub real: f64,
    /// Of INTEGERS.
    pub integers: *const i64,
    /// Of FLAGS.
    pub flags: *const u8,
    /// Of TEXT.
    pub text: *const c_char,
    /// Of TEXTS.
    pub texts: *const *const c_char,
    /// Of TENSOR.
    pub tensor: *const fuseline_tensor,
    /// Of ATTRS.
    pub attrs: *const fuseline_attr,
}

/// A named value.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct fuseline_attr {
    /// The name, as StableHLO writes it.
    pub name: *const c_char,
    /// Which member of `value` is set.
    pub kind: fuseline_attr_kind,
    /// The number of elements, for kinds that are lists.
    pub count: u32,
    /// The value.
    pub value: fuseline_attr_value,
}

/// Checked attributes of an op. They may be recorded any number of times, on any thread.
pub struct fuseline_attrs {
    pub(crate) op: OpCode,
    pub(crate) attrs: Attrs,
}

/// Makes attributes of an op. The input is copied.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fuseline_attrs_new(
    op: fuseline_op,
    attrs: *const fuseline_attr,
    count: usize,
    made: Option<&mut MaybeUninit<*mut fuseline_attrs>>,
) -> *mut fuseline_error {
    guard("fuseline_attrs_new", || {
        let op = self::op(op)?;
        // SAFETY: the caller passes attributes as the header describes them.
        let given = unsafe { Looking::new().named(attrs, count, "attrs") }?;
        put(made, "made", || {
            let attrs = in_order(op.def().attrs, &given, op.name())?.into_iter().collect();
            Ok(Box::into_raw(Box::new(fuseline_attrs { op, attrs })))
        })
    })
}

/// Frees attributes; null is a no-op. Ops that were recorded with them keep theirs.
#[unsafe(no_mangle)]
pub extern "C" fn fuseline_attrs_free(attrs: Option<Box<fuseline_attrs>>) {
    guarded((), || drop(attrs));
}

/// A value from C, decoded.
#[derive(Clone, Debug)]
pub(crate) enum Given<'a> {
    Integer(i64),
    Real(f64),
    Flag(bool),
    Integers(&'a [i64]),
    Flags(Vec<bool>),
    Text(&'a str),
    Texts(Vec<&'a str>),
    DType(engine::DType),
    Tensor(Literal),
    Attrs(Vec<(&'a str, Given<'a>)>),
}

impl Given<'_> {
    fn words(&self) -> &'static str {
        match self {
            Given::Integer(_) => "INTEGER",
            Given::Real(_) => "REAL",
            Given::Flag(_) => "FLAG",
            Given::Integers(_) => "INTEGERS",
            Given::Flags(_) => "FLAGS",
            Given::Text(_) => "TEXT",
            Given::Texts(_) => "TEXTS",
            Given::DType(_) => "DTYPE",
            Given::Tensor(_) => "TENSOR",
            Given::Attrs(_) => "ATTRS",
        }
    }
}

/// The deepest nesting of attribute groups. No op has more than two levels.
const MAX_DEPTH: usize = 8;

/// The largest number of attributes of one call, including those in groups, and of texts and flags:
/// a list may contain itself, or occur many times in others.
const MAX_ATTRS: usize = 1 << 16;

/// Limits how much of the caller's data is read, whatever it points to.
pub(crate) struct Looking {
    /// The number of groups that are being read, nested in each other.
    depth: usize,
    /// The number of values that may still be read.
    left: usize,
}

impl Looking {
    pub(crate) fn new() -> Looking {
        Looking { depth: 0, left: MAX_ATTRS }
    }

    /// Counts values that are about to be read.
    fn take(&mut self, count: usize, name: &str) -> Result<()> {
        let too_many =
            || Fault::invalid(format!("{name} has more than {MAX_ATTRS} values, those in groups included"));
        self.left = self.left.checked_sub(count).ok_or_else(too_many)?;
        Ok(())
    }

    /// Decodes named values.
    ///
    /// # Safety
    /// `attrs` is null or the start of `count` attributes as the header says they are, all of which
    /// stays for `'a`.
    pub(crate) unsafe fn named<'a>(
        &mut self,
        attrs: *const fuseline_attr,
        count: usize,
        name: &str,
    ) -> Result<Vec<(&'a str, Given<'a>)>> {
        if self.depth == MAX_DEPTH {
            let message =
                format!("{name} is nested in {MAX_DEPTH} groups, which is too deep; does it contain itself?");
            return Err(Fault::invalid(message));
        }
        self.take(count, name)?;
        // SAFETY: the caller passes null or that many elements (see the header).
        let attrs = unsafe { list::<fuseline_attr>(attrs, count, name) }?;
        let (mut out, mut names) = (Vec::with_capacity(attrs.len()), HashSet::with_capacity(attrs.len()));
        for (place, attr) in attrs.iter().enumerate() {
            self.depth += 1;
            // SAFETY: as above.
            let looked = unsafe { self.look_at(attr, &format!("{name}[{place}]")) };
            self.depth -= 1;
            let (name, value) = looked?;
            if !names.insert(name) {
                return Err(Fault::invalid(format!("{name} is given twice")));
            }
            out.push((name, value));
        }
        Ok(out)
    }

    /// # Safety
    /// The attribute is as the header says, and all of it lives for `'a`.
    pub(crate) unsafe fn look_at<'a>(
        &mut self,
        attr: &fuseline_attr,
        place: &str,
    ) -> Result<(&'a str, Given<'a>)> {
        // SAFETY: the caller guarantees a valid attribute, so its name is null or a text.
        let name = unsafe { text(attr.name, &format!("{place}.name")) }?;
        let (count, value, what) = (attr.count as usize, attr.value, format!("the value of {name}"));
        // SAFETY: every bit pattern is a number.
        let integer = unsafe { value.integer };
        let given = match attr.kind {
            FUSELINE_ATTR_INTEGER => Given::Integer(integer),
            // SAFETY: every bit pattern is a number.
            FUSELINE_ATTR_REAL => Given::Real(unsafe { value.real }),
            FUSELINE_ATTR_FLAG => Given::Flag(flag(integer, &what)?),
            FUSELINE_ATTR_DTYPE => {
                let code = u32::try_from(integer).unwrap_or(u32::MAX);
                Given::DType(dtype(code)?)
            }
            // SAFETY: the caller guarantees that the member that `kind` selects is set.
            FUSELINE_ATTR_INTEGERS => Given::Integers(unsafe { list(value.integers, count, &what) }?),
            FUSELINE_ATTR_FLAGS => {
                self.take(count, &what)?;
                // SAFETY: the caller guarantees that the member that `kind` selects is set.
                let flags = unsafe { list(value.flags, count, &what) }?;
                Given::Flags(flags.iter().map(|&byte| flag(byte.into(), &what)).collect::<Result<_>>()?)
            }
            // SAFETY: the caller guarantees that the member that `kind` selects is set.
            FUSELINE_ATTR_TEXT => Given::Text(unsafe { text(value.text, &what) }?),
            FUSELINE_ATTR_TEXTS => {
                self.take(count, &what)?;
                // SAFETY: the caller guarantees that the member that `kind` selects is set.
                let texts = unsafe { list(value.texts, count, &what) }?;
                // SAFETY: as above.
                Given::Texts(texts.iter().map(|&one| unsafe { text(one, &what) }).collect::<Result<_>>()?)
            }
            FUSELINE_ATTR_TENSOR => {
                // SAFETY: the caller guarantees that the member that `kind` selects is set.
                let tensor = unsafe { list(value.tensor, 1, &what) }?;
                self.take(1 + tensor[0].size / 1_024, &what)?;
                // SAFETY: as above.
                Given::Tensor(unsafe { literal(&tensor[0], &what) }?)
            }
            // SAFETY: the caller guarantees that the member that `kind` selects is set.
            FUSELINE_ATTR_ATTRS => Given::Attrs(unsafe { self.named(value.attrs, count, &what) }?),
            kind => return Err(Fault::invalid(format!("{name} has the unknown kind {kind}"))),
        };
        Ok((name, given))
    }
}

/// Copies a tensor's data.
///
/// # Safety
/// Its pointer is null or the start of as many bytes as it says.
pub(crate) unsafe fn literal(tensor: &fuseline_tensor, what: &str) -> Result<Literal> {
    let ty = tensor.r#type.read()?;
    if ty.bytes().0 != tensor.size as u64 {
        let (wanted, given) = (ty.bytes().0, tensor.size);
        return Err(Fault::invalid(format!(
            "{what}: {ty} takes {wanted} bytes of data, but {given} were given"
        )));
    }
    // SAFETY: the caller guarantees that `data` is null or `size` readable bytes.
    let bytes = unsafe { list(tensor.data, tensor.size, what) }?;
    Literal::from_bytes(ty, bytes.to_vec()).map_err(|error| Fault::invalid(format!("{what}: {error}")))
}

fn flag(number: i64, what: &str) -> Result<bool> {
    match number {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(Fault::invalid(format!("{what} is {other}, but a flag must be 0 or 1"))),
    }
}

/// Sorts values into the order of a schema.
fn in_order(schema: &[AttrDef], given: &[(&str, Given<'_>)], of: &str) -> Result<Vec<AttrValue>> {
    if let Some((name, _)) = given.iter().find(|(name, _)| schema.iter().all(|def| def.name != *name)) {
        let names: Vec<&str> = schema.iter().map(|def| def.name).collect();
        let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return Err(Fault::bad_op(format!("{of} has no attribute {name:?}; it has {names}")));
    }
    let value = |def: &AttrDef| match given.iter().find(|(name, _)| *name == def.name) {
        Some((_, given)) => of_kind(def, given, of),
        None if def.presence == Presence::Optional => Ok(AttrValue::Absent),
        None => Err(Fault::bad_op(format!("{of} needs the attribute {}: {}", def.name, def.kind))),
    };
    schema.iter().map(value).collect()
}

fn of_kind(def: &AttrDef, given: &Given<'_>, of: &str) -> Result<AttrValue> {
    let wrong = || {
        let (name, kind) = (def.name, given.words());
        Fault::bad_op(format!("the attribute {name} of {of} must be {}, not {kind}", def.kind))
    };
    let member = |members: &EnumDef, text: &str| {
        let place = members.members.iter().position(|member| *member == text);
        place.and_then(|place| u8::try_from(place).ok()).ok_or_else(|| {
            let (name, members) = (def.name, members.members.join(", "));
            Fault::bad_op(format!("the attribute {name} of {of} must be one of {members}, not {text:?}"))
        })
    };
    Ok(match (def.kind, given) {
        (AttrKind::Int | AttrKind::Int32, Given::Integer(number)) => AttrValue::Int(*number),
        (AttrKind::Bool | AttrKind::Unit, Given::Flag(flag)) => AttrValue::Bool(*flag),
        (AttrKind::Float, Given::Real(number)) => AttrValue::Float(AttrFloat::new(*number as f32)),
        (AttrKind::Ints, Given::Integers(numbers)) => AttrValue::Ints(numbers.iter().copied().collect()),
        (AttrKind::Bools, Given::Flags(flags)) => AttrValue::Bools(flags.iter().copied().collect()),
        (AttrKind::Pairs, Given::Integers(numbers)) => {
            let (pairs, rest) = numbers.as_chunks::<2>();
            if !rest.is_empty() {
                let message = format!(
                    "the attribute {} of {of} must be a list of pairs, but it has {} numbers",
                    def.name,
                    numbers.len()
                );
                return Err(Fault::bad_op(message));
            }
            AttrValue::Pairs(pairs.iter().map(|&[low, high]| (low, high)).collect())
        }
        (AttrKind::Groups, Given::Attrs(groups)) => {
            let group = |(_, group): &(&str, Given<'_>)| match group {
                Given::Integers(members) => Ok(members.to_vec()),
                _ => Err(wrong()),
            };
            AttrValue::Groups(Groups::new(&groups.iter().map(group).collect::<Result<Vec<_>>>()?))
        }
        (AttrKind::Enum(members), Given::Text(text)) => AttrValue::Enum(member(members, text)?),
        (AttrKind::Enums(members), Given::Texts(texts)) => {
            AttrValue::Enums(texts.iter().map(|text| member(members, text)).collect::<Result<_>>()?)
        }
        (AttrKind::DType, Given::DType(dtype)) => AttrValue::DType(*dtype),
        (AttrKind::Shape, Given::Integers(sizes)) => {
            let sizes: Option<Vec<u64>> = sizes.iter().map(|&size| u64::try_from(size).ok()).collect();
            let shape = sizes.ok_or_else(|| format!("{given:?} has a negative size"));
            let shape = shape.and_then(|sizes| Shape::new(&sizes).map_err(|error| error.to_string()));
            let wrong =
                |why| Fault::bad_op(format!("the attribute {} of {of} must be a shape: {why}", def.name));
            AttrValue::Shape(shape.map_err(wrong)?)
        }
        (AttrKind::Dense, Given::Tensor(data)) => AttrValue::Dense(Arc::new(data.clone())),
        (AttrKind::Struct(members), Given::Attrs(given)) => {
            let of = format!("{} of {of}", def.name);
            AttrValue::Struct(in_order(members.fields, given, &of)?.into())
        }
        (AttrKind::Name, Given::Text(text)) => AttrValue::Name(Arc::from(*text)),
        (AttrKind::Config, Given::Attrs(entries)) => AttrValue::Config(config(entries)?),
        _ => return Err(wrong()),
    })
}

/// The configuration of a handler call.
fn config(entries: &[(&str, Given<'_>)]) -> Result<Config> {
    let entry = |(name, given): &(&str, Given<'_>)| {
        let value = match given {
            Given::Flag(flag) => ConfigValue::Bool(*flag),
            Given::Integer(number) => ConfigValue::Int(*number),
            Given::Real(number) => ConfigValue::Float(ConfigFloat::new(*number)),
            Given::Text(text) => ConfigValue::Text(Arc::from(*text)),
            Given::Integers(numbers) => ConfigValue::Ints(numbers.iter().copied().collect()),
            other => {
                let kind = other.words();
                return Err(Fault::bad_op(format!(
                    "the configuration entry {name} of a handler call cannot be {kind}"
                )));
            }
        };
        Ok((Arc::<str>::from(*name), value))
    };
    Ok(Config::of(entries.iter().map(entry).collect::<Result<Vec<_>>>()?))
}

/// Entries in C's layout, and the memory that they point to.
pub(crate) struct Entries<'a> {
    attrs: Vec<fuseline_attr>,
    _names: Vec<CString>,
    _of: &'a Config,
}

impl<'a> Entries<'a> {
    pub(crate) fn of(config: &'a Config) -> Entries<'a> {
        let mut names = Vec::new();
        let mut keep = |text: &str| {
            let kept = c_text(text);
            // The elements keep their address when the list grows.
            let start = kept.as_ptr();
            names.push(kept);
            start
        };
        let mut attrs = Vec::new();
        for (name, value) in config.entries() {
            let name = keep(name);
            let (kind, count, value) = match value {
                ConfigValue::Bool(flag) => {
                    (FUSELINE_ATTR_FLAG, 1, fuseline_attr_value { integer: i64::from(*flag) })
                }
                ConfigValue::Int(number) => {
                    (FUSELINE_ATTR_INTEGER, 1, fuseline_attr_value { integer: *number })
                }
                ConfigValue::Float(number) => {
                    (FUSELINE_ATTR_REAL, 1, fuseline_attr_value { real: number.get() })
                }
                ConfigValue::Text(text) => (FUSELINE_ATTR_TEXT, 1, fuseline_attr_value { text: keep(text) }),
                ConfigValue::Ints(numbers) => {
                    let integers = if numbers.is_empty() { ptr::null() } else { numbers.as_ptr() };
                    (FUSELINE_ATTR_INTEGERS, numbers.len() as u32, fuseline_attr_value { integers })
                }
            };
            attrs.push(fuseline_attr { name, kind, count, value });
        }
        Entries { attrs, _names: names, _of: config }
    }

    pub(crate) fn get(&self) -> &[fuseline_attr] {
        &self.attrs
    }
}
