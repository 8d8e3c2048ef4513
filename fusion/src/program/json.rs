//! JSON values with their path, so that every error says where in the file it is.

use serde_json::Value;

use super::ProgramError;

/// A JSON value and the path to it.
#[derive(Clone)]
pub(super) struct At<'a> {
    pub(super) value: &'a Value,
    pub(super) path: String,
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

impl<'a> At<'a> {
    pub(super) fn root(value: &'a Value) -> At<'a> {
        At { value, path: "program".to_owned() }
    }

    pub(super) fn error(&self, problem: impl Into<String>) -> ProgramError {
        ProgramError::new(self.path.clone(), problem)
    }

    fn wrong(&self, wanted: &str) -> ProgramError {
        self.error(format!("expected {wanted}, found {}", kind(self.value)))
    }

    pub(super) fn get(&self, key: &str) -> Result<At<'a>, ProgramError> {
        self.find(key)?.ok_or_else(|| self.error(format!("{key:?} is missing")))
    }

    pub(super) fn find(&self, key: &str) -> Result<Option<At<'a>>, ProgramError> {
        let object = self.value.as_object().ok_or_else(|| self.wrong("an object"))?;
        let path = if self.path == "program" { key.to_owned() } else { format!("{}.{key}", self.path) };
        Ok(object.get(key).map(|value| At { value, path }))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.value.as_object().into_iter().flatten().map(|(key, _)| key.as_str())
    }

    pub(super) fn list(&self) -> Result<Vec<At<'a>>, ProgramError> {
        let items = self.value.as_array().ok_or_else(|| self.wrong("a list"))?;
        Ok(items
            .iter()
            .enumerate()
            .map(|(i, value)| At { value, path: format!("{}[{i}]", self.path) })
            .collect())
    }

    pub(super) fn string(&self) -> Result<&'a str, ProgramError> {
        self.value.as_str().ok_or_else(|| self.wrong("a string"))
    }

    pub(super) fn boolean(&self) -> Result<bool, ProgramError> {
        self.value.as_bool().ok_or_else(|| self.wrong("true or false"))
    }

    pub(super) fn int(&self) -> Result<i64, ProgramError> {
        self.value.as_i64().ok_or_else(|| self.wrong("an integer"))
    }

    pub(super) fn number(&self) -> Result<f64, ProgramError> {
        self.value.as_f64().ok_or_else(|| self.wrong("a number"))
    }

    /// A 32-bit float: a number, or a word for values that JSON numbers cannot express.
    pub(super) fn float(&self) -> Result<f32, ProgramError> {
        match self.value.as_str() {
            Some("nan") => Ok(f32::NAN),
            Some("inf") => Ok(f32::INFINITY),
            Some("-inf") => Ok(f32::NEG_INFINITY),
            Some(_) => Err(self.error("expected a number, \"nan\", \"inf\" or \"-inf\"")),
            None => Ok(self.number()? as f32),
        }
    }

    pub(super) fn ints(&self) -> Result<Vec<i64>, ProgramError> {
        self.list()?.iter().map(At::int).collect()
    }
}
