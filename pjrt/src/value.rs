//! Named values: client options as input, attributes and cost properties as output.

use std::fmt;

use pjrt_sys::*;

use super::api::{list, text};

/// A typed value of the C API's key-value lists.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the variants are the types")]
pub enum Value {
    String(String),
    Int(i64),
    IntList(Vec<i64>),
    Float(f32),
    Bool(bool),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::String(text) => f.write_str(text),
            Value::Int(number) => number.fmt(f),
            Value::IntList(numbers) => {
                let words: Vec<_> = numbers.iter().map(i64::to_string).collect();
                f.write_str(&words.join("."))
            }
            Value::Float(number) => number.fmt(f),
            Value::Bool(flag) => flag.fmt(f),
        }
    }
}

macro_rules! from {
    ($($ty:ty => $variant:ident),*) => {$(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Value {
                Value::$variant(value.into())
            }
        }
    )*};
}
from!(&str => String, String => String, i64 => Int, i32 => Int, u32 => Int, Vec<i64> => IntList, f32 => Float, bool => Bool);

impl Value {
    /// The names of the types, for [`Value::parse`].
    pub const TYPES: &str = "bool, int, ints, float or string";

    /// The name of the type, and the value as text: what [`Value::parse`] reads.
    #[must_use]
    pub fn to_typed_text(&self) -> (&'static str, String) {
        match self {
            Value::String(text) => ("string", text.clone()),
            Value::Int(number) => ("int", number.to_string()),
            Value::IntList(numbers) => {
                let words: Vec<_> = numbers.iter().map(i64::to_string).collect();
                ("ints", words.join(","))
            }
            Value::Float(number) => ("float", number.to_string()),
            Value::Bool(flag) => ("bool", flag.to_string()),
        }
    }

    /// Parses a value of a named type. A list has commas between its numbers.
    ///
    /// # Errors
    /// When there is no such type, or the text has no value of it; in words.
    pub fn parse(ty: &str, text: &str) -> Result<Value, String> {
        let wrong = |what: &str| format!("`{text}` is not {what}");
        match ty {
            "bool" => text.parse().map(Value::Bool).map_err(|_| wrong("true or false")),
            "int" => text.parse().map(Value::Int).map_err(|_| wrong("an integer")),
            "ints" if text.is_empty() => Ok(Value::IntList(Vec::new())),
            "ints" => {
                let numbers: Result<_, _> = text.split(',').map(|number| number.trim().parse()).collect();
                numbers.map(Value::IntList).map_err(|_| wrong("a list of integers with commas between them"))
            }
            "float" => text.parse().map(Value::Float).map_err(|_| wrong("a number")),
            "string" => Ok(Value::String(text.to_owned())),
            _ => Err(format!("`{ty}` is no type of options; expected {}", Value::TYPES)),
        }
    }

    /// The C form. It borrows from `name` and `self`.
    pub(super) fn to_raw(&self, name: &str) -> PJRT_NamedValue {
        let mut raw = PJRT_NamedValue {
            struct_size: PJRT_NamedValue_STRUCT_SIZE as usize,
            name: name.as_ptr().cast(),
            name_size: name.len(),
            value_size: 1,
            ..Default::default()
        };
        match self {
            Value::String(text) => {
                raw.type_ = PJRT_NamedValue_Type_PJRT_NamedValue_kString;
                raw.__bindgen_anon_1.string_value = text.as_ptr().cast();
                raw.value_size = text.len();
            }
            Value::Int(number) => {
                raw.type_ = PJRT_NamedValue_Type_PJRT_NamedValue_kInt64;
                raw.__bindgen_anon_1.int64_value = *number;
            }
            Value::IntList(numbers) => {
                raw.type_ = PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List;
                raw.__bindgen_anon_1.int64_array_value = numbers.as_ptr();
                raw.value_size = numbers.len();
            }
            Value::Float(number) => {
                raw.type_ = PJRT_NamedValue_Type_PJRT_NamedValue_kFloat;
                raw.__bindgen_anon_1.float_value = *number;
            }
            Value::Bool(flag) => {
                raw.type_ = PJRT_NamedValue_Type_PJRT_NamedValue_kBool;
                raw.__bindgen_anon_1.bool_value = *flag;
            }
        }
        raw
    }
}

/// Copies a plugin's list of named values. Values of newer types are left out.
///
/// # Safety
/// `len` values can be read at `start`, each as long as its `struct_size` says, or one of the two
/// is zero.
pub(super) unsafe fn read_named_values(start: *const PJRT_NamedValue, len: usize) -> Vec<(String, Value)> {
    if start.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: holds because there is a first value.
    let size = unsafe { (*start).struct_size };
    // A plugin with a larger struct has a larger stride; some leave the size at zero.
    let stride = size.max(size_of::<PJRT_NamedValue>()).next_multiple_of(align_of::<PJRT_NamedValue>());
    (0..len)
        .filter_map(|index| {
            // SAFETY: holds because `index` is below `len` and values stand `stride` bytes apart.
            let raw = unsafe { start.byte_add(index * stride) };
            // SAFETY: holds because that is one of the values.
            let raw = unsafe { &*raw };
            // SAFETY: holds because the value is the plugin's own.
            unsafe { read_named_value(raw) }
        })
        .collect()
}

/// # Safety
/// `raw` is a value that a plugin made: its type tells which field of the union is set.
unsafe fn read_named_value(raw: &PJRT_NamedValue) -> Option<(String, Value)> {
    // SAFETY: holds because the name has that length.
    let name = unsafe { text(raw.name, raw.name_size) };
    let union = &raw.__bindgen_anon_1;
    #[allow(non_upper_case_globals, reason = "the names are bindgen's")]
    let value = match raw.type_ {
        PJRT_NamedValue_Type_PJRT_NamedValue_kString => {
            // SAFETY: holds because the type says so.
            let start = unsafe { union.string_value };
            // SAFETY: holds because the string has that length.
            Value::String(unsafe { text(start, raw.value_size) })
        }
        PJRT_NamedValue_Type_PJRT_NamedValue_kInt64 => {
            // SAFETY: holds because the type says so.
            Value::Int(unsafe { union.int64_value })
        }
        PJRT_NamedValue_Type_PJRT_NamedValue_kInt64List => {
            // SAFETY: holds because the type says so.
            let start = unsafe { union.int64_array_value };
            // SAFETY: holds because the list has that length.
            Value::IntList(unsafe { list(start, raw.value_size) }.to_vec())
        }
        PJRT_NamedValue_Type_PJRT_NamedValue_kFloat => {
            // SAFETY: holds because the type says so.
            Value::Float(unsafe { union.float_value })
        }
        PJRT_NamedValue_Type_PJRT_NamedValue_kBool => {
            // SAFETY: holds because the type says so.
            Value::Bool(unsafe { union.bool_value })
        }
        _ => return None,
    };
    Some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_survive_the_way_through_c() {
        let values = [
            Value::from("text"),
            Value::from(String::new()),
            Value::from(-7i64),
            Value::from(vec![1, 2, 3]),
            Value::from(0.5f32),
            Value::from(true),
        ];
        let raw: Vec<_> = values.iter().map(|value| value.to_raw("name")).collect();
        // SAFETY: holds because the list was made here.
        let back = unsafe { read_named_values(raw.as_ptr(), raw.len()) };
        assert_eq!(back.len(), values.len());
        for ((name, value), given) in back.iter().zip(&values) {
            assert_eq!((name.as_str(), value), ("name", given));
        }
    }

    #[test]
    fn values_survive_as_typed_text() {
        for value in [
            Value::from("a b=c,d"),
            Value::from(String::new()),
            Value::from(i64::MIN),
            Value::from(vec![1, -2, 3]),
            Value::from(Vec::new()),
            Value::from(0.1f32),
            Value::from(f32::MIN_POSITIVE),
            Value::from(false),
        ] {
            let (ty, text) = value.to_typed_text();
            assert_eq!(Value::parse(ty, &text), Ok(value));
        }
    }

    #[test]
    fn a_larger_struct_has_a_larger_stride() {
        #[repr(C)]
        struct Longer(PJRT_NamedValue, u64);
        let mut raw = [Value::from(1i64), Value::from(2i64)].map(|value| Longer(value.to_raw("n"), u64::MAX));
        for one in &mut raw {
            one.0.struct_size = size_of::<Longer>();
        }
        // SAFETY: holds because each value is as long as it says.
        let back = unsafe { read_named_values(raw.as_ptr().cast(), raw.len()) };
        assert_eq!(back.iter().map(|row| row.1.clone()).collect::<Vec<_>>(), [Value::Int(1), Value::Int(2)]);
    }
}
