//! The configuration and the calling convention of a `custom_call`.

use std::sync::Arc;

use super::error::{Result, Shown};
use super::scan::{Scanner, other, unsupported};
use crate::attr::is_name;
use crate::dtype::DType;
use crate::element::to_f64;
use crate::handler::{Config, ConfigValue, TARGET_KEY, is_key};

impl Scanner<'_> {
    /// Reads a dictionary of values for a handler, or the empty string, which means none.
    pub(super) fn config(&mut self) -> Result<Config> {
        let at = self.place();
        if self.peek() == Some(b'"') {
            return match &*self.string()? {
                "" => Ok(Config::none()),
                _ => Err(unsupported(at, "a backend_config in a format of the target is not supported")),
            };
        }
        let mut entries: Vec<(Arc<str>, ConfigValue)> = Vec::new();
        self.dictionary(|scanner, key, at| {
            if key == TARGET_KEY {
                return scanner.string().map(drop);
            }
            if !is_key(key) {
                return Err(other(at, format!("{} is not an identifier", Shown(key))));
            }
            if entries.iter().any(|(name, _)| **name == *key) {
                return Err(other(at, format!("{} is given twice", Shown(key))));
            }
            entries.push((key.into(), scanner.config_value()?));
            Ok(())
        })?;
        Ok(Config::of(entries))
    }

    /// Reads `true`, `"text"`, `array<i64: 1, 2>`, `1 : i64` or `1.5 : f64`. Integers and floats of
    /// other widths become 64 bits wide.
    fn config_value(&mut self) -> Result<ConfigValue> {
        let at = self.place();
        match self.peek() {
            Some(b't' | b'f') if self.eat_word("true") => Ok(true.into()),
            Some(b'f') if self.eat_word("false") => Ok(false.into()),
            Some(b'"') => {
                let text = self.string()?;
                if is_name(&text) {
                    Ok(ConfigValue::Text(text.as_ref().into()))
                } else {
                    Err(unsupported(at, format!("handlers take names, but not the text {}", Shown(&text))))
                }
            }
            Some(b'a' | b'd' | b'[') => Ok(ConfigValue::Ints(self.integers()?)),
            Some(b'-' | b'0'..=b'9') => self.config_number(),
            _ => Err(self.expected("a flag, a number, a name or a list of integers")),
        }
    }

    fn config_number(&mut self) -> Result<ConfigValue> {
        // The type or the decimal point distinguishes floats from integers.
        let mut ahead = *self;
        let is_float = ahead.float(DType::F64).is_ok();
        let dtype = if ahead.eat_type(&["f32"]) { DType::F32 } else { DType::F64 };
        if is_float {
            let bits = self.float(dtype)?;
            self.eat_type(&["f32", "f64"]);
            return Ok(to_f64(dtype, bits).into());
        }
        let value = self.integer()?;
        self.eat_type(&["i1", "i8", "i16", "i32", "i64"]);
        Ok(value.into())
    }

    /// Reads an attribute of a `custom_call` that describes its calling convention, if `key` is
    /// one. It must match the library's convention: the typed FFI, row-major operands and results,
    /// no functions of the module and no shared memory.
    pub(super) fn convention(&mut self, key: &str) -> Result<bool> {
        let at = self.place();
        let refuse = |what: &str| Err(unsupported(at, format!("a custom_call with {what} is not supported")));
        match key {
            "api_version" => {
                let version = self.integer()?;
                self.eat_type(&["i32"]);
                if version != 4 {
                    return refuse("an api_version other than 4, the typed FFI,");
                }
            }
            "operand_layouts" | "result_layouts" => {
                self.skip_value()?;
                if !self.since(at).split("dense<").skip(1).all(is_row_major) {
                    return refuse("layouts other than row-major");
                }
            }
            "called_computations" | "output_operand_aliases" => {
                self.skip_value()?;
                if self.since(at).chars().any(char::is_alphanumeric) {
                    return refuse(key);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Whether the numbers up to the next `>` count down to 0. An empty list is the layout of a scalar.
fn is_row_major(layout: &str) -> bool {
    let inside = layout.split('>').next().unwrap_or("");
    let numbers: Vec<&str> =
        inside.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).collect();
    let count = numbers.len();
    // One number may be a splat: `dense<0>` for one dimension.
    numbers.iter().enumerate().all(|(index, number)| number.parse() == Ok(count - 1 - index))
}
