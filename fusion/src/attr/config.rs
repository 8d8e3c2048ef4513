//! The configuration that a call passes to its handler.

use std::fmt;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Ints, is_name};
use crate::limits::{MAX_CONFIG, MAX_NAME};

/// Named values that a call passes to its handler. They are part of the call, its key and its
/// module.
///
/// Entries are sorted by name and names are unique. A name is an identifier ([`is_key`]), so it
/// needs no quotes.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Config(Box<[(Arc<str>, ConfigValue)]>);

/// A value of a [`Config`]: the types that XLA's typed FFI can pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ConfigValue {
    /// A flag.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// A floating point number.
    Float(ConfigFloat),
    /// A string that is a name ([`is_name`]).
    Text(Arc<str>),
    /// A list of integers.
    Ints(Ints),
}

/// A 64-bit float that is compared, hashed and encoded by its bits. All NaNs become one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConfigFloat(u64);

impl ConfigFloat {
    /// Wraps a number; every NaN becomes the canonical one.
    #[must_use]
    pub fn new(value: f64) -> ConfigFloat {
        ConfigFloat(if value.is_nan() { f64::NAN } else { value }.to_bits())
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> f64 {
        f64::from_bits(self.0)
    }
}

impl fmt::Debug for ConfigFloat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.get())
    }
}

/// Whether a text may name an entry: a letter or `_`, then letters, digits and `_`, at most
/// [`MAX_NAME`] bytes. Dots are excluded; names with a dot are reserved for the library.
#[must_use]
pub fn is_key(text: &str) -> bool {
    let mut bytes = text.bytes();
    let first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
    first && text.len() <= MAX_NAME && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

impl Config {
    /// No entries.
    #[must_use]
    pub fn none() -> Config {
        Config::default()
    }

    /// Sorts the entries by name. The last entry with a name wins.
    ///
    /// ```
    /// use fuseline_fusion::handler::Config;
    ///
    /// let config = Config::of([("scale", 0.5.into()), ("axis", 1.into())]);
    /// assert_eq!(config.int("axis"), Some(1));
    /// assert_eq!(config.float("scale"), Some(0.5));
    /// assert_eq!(config.int("scale"), None);
    /// ```
    #[must_use]
    pub fn of<N: Into<Arc<str>>>(entries: impl IntoIterator<Item = (N, ConfigValue)>) -> Config {
        let mut sorted: Vec<(Arc<str>, ConfigValue)> = Vec::new();
        for (name, value) in entries {
            let name = name.into();
            match sorted.binary_search_by(|(other, _)| other.cmp(&name)) {
                Ok(place) => sorted[place].1 = value,
                Err(place) => sorted.insert(place, (name, value)),
            }
        }
        Config(sorted.into())
    }

    /// The entries, in the order of their names.
    #[must_use]
    pub fn entries(&self) -> &[(Arc<str>, ConfigValue)] {
        &self.0
    }

    /// The value of an entry.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&ConfigValue> {
        let place = self.0.binary_search_by(|(other, _)| (**other).cmp(name)).ok()?;
        Some(&self.0[place].1)
    }

    /// The value of an entry, if it is a flag.
    #[must_use]
    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            ConfigValue::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The value of an entry, if it is an integer.
    #[must_use]
    pub fn int(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            ConfigValue::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The value of an entry, if it is a floating point number.
    #[must_use]
    pub fn float(&self, name: &str) -> Option<f64> {
        match self.get(name)? {
            ConfigValue::Float(value) => Some(value.get()),
            _ => None,
        }
    }

    /// The value of an entry, if it is a string.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name)? {
            ConfigValue::Text(value) => Some(value),
            _ => None,
        }
    }

    /// The value of an entry, if it is a list of integers.
    #[must_use]
    pub fn ints(&self, name: &str) -> Option<&[i64]> {
        match self.get(name)? {
            ConfigValue::Ints(values) => Some(values),
            _ => None,
        }
    }

    /// Whether modules and keys can hold it: at most [`MAX_CONFIG`] entries, sorted, with valid
    /// names and strings.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let sound = |(name, value): &(Arc<str>, ConfigValue)| {
            is_key(name)
                && match value {
                    ConfigValue::Text(text) => is_name(text),
                    ConfigValue::Ints(values) => values.len() <= MAX_CONFIG,
                    ConfigValue::Bool(_) | ConfigValue::Int(_) | ConfigValue::Float(_) => true,
                }
        };
        self.0.len() <= MAX_CONFIG && self.0.iter().all(sound)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter().map(|(name, value)| (name, value))).finish()
    }
}

impl fmt::Display for ConfigValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Bool(value) => value.fmt(f),
            ConfigValue::Int(value) => value.fmt(f),
            ConfigValue::Float(value) => write!(f, "{value:?}"),
            ConfigValue::Text(value) => f.write_str(value),
            ConfigValue::Ints(values) => write!(f, "{:?}", values.as_slice()),
        }
    }
}

impl From<bool> for ConfigValue {
    fn from(value: bool) -> Self {
        ConfigValue::Bool(value)
    }
}

impl From<i64> for ConfigValue {
    fn from(value: i64) -> Self {
        ConfigValue::Int(value)
    }
}

impl From<f64> for ConfigValue {
    fn from(value: f64) -> Self {
        ConfigValue::Float(ConfigFloat::new(value))
    }
}

impl From<&str> for ConfigValue {
    fn from(value: &str) -> Self {
        ConfigValue::Text(value.into())
    }
}

impl From<&[i64]> for ConfigValue {
    fn from(values: &[i64]) -> Self {
        ConfigValue::Ints(SmallVec::from_slice(values))
    }
}
