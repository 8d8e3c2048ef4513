//! Tuples, which occur in program files but not in programs.
//!
//! Values are tensors. A tuple only names several of them, so reading a file resolves it: `tuple`
//! and `get_tuple_element` create no ops, and an id that they define stands for the tensors that
//! the tuple was made of.

use std::collections::HashMap;
use std::sync::Arc;

use super::field::{id, ty};
use super::json::At;
use super::{ProgramError, ProgramId};
use crate::limits::MAX_BODY_DEPTH;
use crate::shape::TensorType;

type Result<T, E = ProgramError> = std::result::Result<T, E>;

/// The meaning of an id.
#[derive(Clone, Debug)]
enum Item {
    Tensor(ProgramId, TensorType),
    /// Shared, because a file of a megabyte can name one tuple of thousands of elements thousands
    /// of times.
    Tuple {
        items: Arc<[Item]>,
        depth: usize,
    },
}

impl Item {
    /// Whether a type in a file is the type of this item.
    fn has_type(&self, at: &At<'_>) -> Result<bool> {
        let is_tuple = at.get("dtype")?.string()? == "tuple";
        match self {
            Item::Tensor(_, tensor) => Ok(!is_tuple && ty(at)? == *tensor),
            Item::Tuple { .. } if !is_tuple => Ok(false),
            Item::Tuple { items, .. } => {
                let types = at.get("elements")?.list()?;
                let mut same = types.len() == items.len();
                for (item, ty) in items.iter().zip(&types) {
                    same = same && item.has_type(ty)?;
                }
                Ok(same)
            }
        }
    }

    fn depth(&self) -> usize {
        match self {
            Item::Tensor(..) => 0,
            Item::Tuple { depth, .. } => *depth,
        }
    }
}

/// Ids that stand for other values.
#[derive(Default)]
pub(super) struct Tuples(HashMap<ProgramId, Item>);

impl Tuples {
    /// Whether an op creates or unpacks tuples.
    pub(super) fn concerns(op: &str) -> bool {
        matches!(op, "stablehlo.tuple" | "stablehlo.get_tuple_element")
    }

    pub(super) fn contains(&self, id: ProgramId) -> bool {
        self.0.contains_key(&id)
    }

    /// The tensor of an id.
    ///
    /// # Errors
    /// If it is a tuple.
    pub(super) fn tensor(&self, at: &At<'_>, id: ProgramId) -> Result<ProgramId> {
        match self.0.get(&id) {
            None => Ok(id),
            Some(Item::Tensor(id, _)) => Ok(*id),
            Some(Item::Tuple { .. }) => {
                Err(at.error(format!("id {} is a tuple, which only tuple and get_tuple_element take", id.0)))
            }
        }
    }

    /// Reads an op that creates or unpacks a tuple; `tensors` has the types of the tensors before
    /// it.
    ///
    /// # Errors
    /// If the op does not fit its operands or the declared result.
    pub(super) fn read(&mut self, at: &At<'_>, tensors: &HashMap<ProgramId, TensorType>) -> Result<()> {
        let mut items = Vec::new();
        for operand in at.get("operands")?.list()? {
            let id = id(&operand)?;
            let tensor = || tensors.get(&id).map(|ty| Item::Tensor(id, ty.clone()));
            let item = self.0.get(&id).cloned().or_else(tensor);
            items.push(
                item.ok_or_else(|| operand.error(format!("id {} is not defined before its use", id.0)))?,
            );
        }
        let item = match at.get("op")?.string()? {
            "stablehlo.tuple" => {
                let depth = 1 + items.iter().map(Item::depth).max().unwrap_or(0);
                Item::Tuple { items: items.into(), depth }
            }
            _ => {
                let [Item::Tuple { items: parts, .. }] = items.as_slice() else {
                    return Err(at.error("get_tuple_element takes one operand, a tuple"));
                };
                let index = at.get("attrs")?.get("index")?;
                let part = usize::try_from(index.int()?).ok().and_then(|index| parts.get(index));
                part.cloned().ok_or_else(|| index.error(format!("the tuple has {} elements", parts.len())))?
            }
        };
        if item.depth() > MAX_BODY_DEPTH {
            return Err(at.error(format!("tuples nest more than {MAX_BODY_DEPTH} deep")));
        }
        let results = at.get("results")?;
        let list = results.list()?;
        let [result] = list.as_slice() else { return Err(results.error("there must be one result")) };
        if !item.has_type(result)? {
            return Err(result.error("the declared type is not the type that the operands give"));
        }
        let made = id(&result.get("id")?)?;
        if tensors.contains_key(&made) || self.0.insert(made, item).is_some() {
            return Err(result.error(format!("id {} is defined twice", made.0)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::program::{Program, ProgramId};

    const PAIR: &str = r#"{"shape":[],"dtype":"tuple","elements":[{"shape":[2],"dtype":"f32"},
        {"shape":[],"dtype":"tuple","elements":[{"shape":[],"dtype":"i32"}]}]"#;

    /// Parses a file with `(x, (y))` and its parts, after replacing `from` with `to`.
    fn parse(from: &str, to: &str) -> Result<Program, String> {
        let text = format!(
            r#"{{"values":[{{"id":0,"role":"input","shape":[2],"dtype":"f32","data":"AACAPwAAAEA="}},
                {{"id":1,"role":"const","shape":[],"dtype":"i32","data":"AwAAAA=="}}],
            "ops":[
                {{"op":"stablehlo.tuple","operands":[1],"attrs":{{}},
                  "results":[{{"id":2,"shape":[],"dtype":"tuple","elements":[{{"shape":[],"dtype":"i32"}}]}}]}},
                {{"op":"stablehlo.tuple","operands":[0,2],"attrs":{{}},"results":[{PAIR},"id":3}}]}},
                {{"op":"stablehlo.get_tuple_element","operands":[3],"attrs":{{"index":0}},
                  "results":[{{"id":4,"shape":[2],"dtype":"f32"}}]}},
                {{"op":"stablehlo.get_tuple_element","operands":[3],"attrs":{{"index":1}},
                  "results":[{{"id":5,"shape":[],"dtype":"tuple","elements":[{{"shape":[],"dtype":"i32"}}]}}]}},
                {{"op":"stablehlo.get_tuple_element","operands":[5],"attrs":{{"index":0}},
                  "results":[{{"id":6,"shape":[],"dtype":"i32"}}]}},
                {{"op":"stablehlo.negate","operands":[4],"attrs":{{}},
                  "results":[{{"id":7,"shape":[2],"dtype":"f32"}}]}}],
            "outputs":[4,6,7]}}"#
        );
        assert!(text.contains(from), "{from} is not in the file");
        Program::parse(&text.replacen(from, to, 1)).map_err(|error| error.to_string())
    }

    #[test]
    fn a_tuple_is_what_it_was_made_of() {
        let program = parse("", "").expect("reads");
        assert_eq!(program.outputs, [ProgramId(0), ProgramId(1), ProgramId(7)]);
        assert_eq!(program.ops.len(), 1);
        assert_eq!(program.ops[0].operands, [ProgramId(0)]);
        assert_eq!(Program::parse(&program.to_json()).expect("reads"), program);
    }

    #[test]
    fn what_is_wrong_with_a_tuple_is_said() {
        for (from, to, said) in [
            (r#""index":1"#, r#""index":2"#, "the tuple has 2 elements"),
            (r#""index":1"#, r#""index":-1"#, "the tuple has 2 elements"),
            (r#""operands":[5]"#, r#""operands":[4]"#, "takes one operand, a tuple"),
            (r#""operands":[0,2]"#, r#""operands":[0,9]"#, "id 9 is not defined"),
            (r#""operands":[0,2]"#, r#""operands":[0,1]"#, "the declared type"),
            (r#""outputs":[4,"#, r#""outputs":[3,"#, "id 3 is a tuple"),
            (r#"negate","operands":[4]"#, r#"negate","operands":[5]"#, "id 5 is a tuple"),
            (r#""id":6,"#, r#""id":5,"#, "id 5 is defined twice"),
            (r#""id":6,"#, r#""id":0,"#, "id 0 is defined twice"),
            (r#""id":7,"#, r#""id":3,"#, "id 3 is defined twice"),
        ] {
            let error = parse(from, to).expect_err(to);
            assert!(error.contains(said), "{to}: {error}");
        }
    }
}
