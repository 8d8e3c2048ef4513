//! The verifier: reads a module back before it is compiled.
//!
//! - VERIFY-1: the plugin compiles only text that the verifier has found to express the region, op
//!   for op. A [`Verified`] can only come from [`Module::verify`], and the device compiles nothing
//!   else.
//!
//! Text could express anything. So the reader of [`crate::text`], which is a parser of the language
//! and not the inverse of the printer, reads back what is about to be compiled. The result must be,
//! op for op, the function that was lowered: the same parameters and aliases, the same ops with the
//! same attributes, bodies and operands, the same returns, and nothing else. Each op passes the op
//! table once more, so an accepted module is well-typed, and a name or an attribute that escaped
//! from its position would be found.
//!
//! Cost: linear in the length of the text.

use std::fmt;

use super::Module;
use crate::ir::Body;
use crate::text::{TextError, TextModule};

/// A module that the verifier accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified(Module);

/// Why the verifier rejected a module. This is always a bug of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyError {
    /// The text is not a module.
    Unreadable(TextError),
    /// The text is a module, but of another function.
    Differs(String),
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bug: the module printed for a region ")?;
        match self {
            VerifyError::Unreadable(error) => write!(f, "cannot be read: {error}"),
            VerifyError::Differs(how) => write!(f, "is not that of the region: {how}"),
        }
    }
}

impl std::error::Error for VerifyError {}

impl Verified {
    /// The module.
    #[must_use]
    pub fn module(&self) -> &Module {
        &self.0
    }

    /// Its text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.0.text()
    }
}

impl Module {
    /// Reads the text back and compares it with the function that was lowered.
    ///
    /// # Errors
    /// If they differ, which is a bug of the library.
    pub fn verify(self) -> Result<Verified, VerifyError> {
        let read = TextModule::parse_whole(&self.text).map_err(VerifyError::Unreadable)?;
        match difference(&self, &read) {
            None => Ok(Verified(self)),
            Some(how) => Err(VerifyError::Differs(how)),
        }
    }
}

/// The first difference between a text and the function that was lowered.
fn difference(module: &Module, read: &TextModule) -> Option<String> {
    if read.functions() != 1 {
        return Some(format!("it has {} functions", read.functions()));
    }
    if read.aliases() != module.aliases {
        return Some(format!("it reuses {:?}, not {:?}", read.aliases(), module.aliases));
    }
    let (is, was): (&Body, &Body) = (read.main(), &module.function);
    if is == was {
        return None;
    }
    if is.graph().params() != was.graph().params() {
        return Some(format!("it takes {:?}, not {:?}", is.graph().params(), was.graph().params()));
    }
    let (ops, wanted) = (is.graph().nodes(), was.graph().nodes());
    if let Some(index) = ops.iter().zip(wanted).position(|(is, was)| is != was) {
        return Some(format!("op {index} is {:?}, not {:?}", ops[index], wanted[index]));
    }
    if ops.len() != wanted.len() {
        return Some(format!("it has {} ops, not {}", ops.len(), wanted.len()));
    }
    Some(format!("it returns {:?}, not {:?}", is.returns(), was.returns()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::Attrs;
    use crate::canon::CanonRegion;
    use crate::dtype::DType;
    use crate::ir::{Graph, OpCode};
    use crate::lower::{Aliases, Numerics, lower};
    use crate::op::attrs;
    use crate::shape::TensorType;

    /// A region with a lifted scalar, a body, an op that is lowered to others, a composite, and an
    /// alias.
    fn module() -> Module {
        let ty = TensorType::of(DType::F32, &[4]).expect("small");
        let ints = TensorType::of(DType::I32, &[4]).expect("small");
        let mut graph = Graph::new();
        let x = graph.param(ty.clone());
        let step = graph.param(TensorType::scalar(DType::F32));
        let n = graph.param(ints.clone());
        let mut push = |op, attrs, bodies: &[Arc<Body>], operands: &[crate::Ref]| {
            graph.push(op, attrs, bodies, operands).expect("fits the table")[0]
        };
        let step =
            push(OpCode::BroadcastInDim, attrs::broadcast_in_dim(ty.shape().clone(), &[]), &[], &[step]);
        let y = push(OpCode::Multiply, Attrs::none(), &[], &[x, step]);
        push(OpCode::Divide, Attrs::none(), &[], &[n, n]);
        let mut inner = Graph::new();
        let (a, b) = (inner.param(ty.clone()), inner.param(ty.clone()));
        let sum = inner.push(OpCode::Subtract, Attrs::none(), &[], &[b, a]).expect("fits the table")[0];
        let body = Arc::new(Body::new(inner, &[sum, a]).expect("they exist"));
        let z = push(OpCode::Composite, attrs::composite("user.f"), &[body], &[x, y]);
        let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).expect("adds"));
        let zero = push(OpCode::Constant, attrs::constant(Arc::new(crate::Literal::scalar(0f32))), &[], &[]);
        push(OpCode::Reduce, attrs::dimensions(&[0]), &[add], &[z, zero]);
        let outputs: Vec<u32> = (0..graph.result_count() as u32).collect();
        let region = CanonRegion::new(graph, Box::new([false, true, false]));
        let aliases = Aliases::pair(&region, &outputs, &[0, 2]);
        lower(&region, &outputs, &aliases, Numerics::Fast)
    }

    #[test]
    fn what_was_printed_is_accepted() {
        let verified = module().verify().unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(verified.module(), &module());
    }

    /// A branch captures one value under two names, and an inner branch captures both. The text has
    /// one name for it in both branches.
    #[test]
    fn what_is_captured_twice_is_one_value_in_inner_branches_too() {
        let (ty, index) = (TensorType::of(DType::F32, &[2]).expect("small"), TensorType::scalar(DType::I32));
        let body = |returns: usize, captured: usize| {
            let mut graph = Graph::new();
            let params: Vec<crate::Ref> = (0..captured).map(|_| graph.param(ty.clone())).collect();
            Arc::new(Body::new(graph, &params[returns..=returns]).expect("they exist"))
        };
        // The branches of the middle level have separate parameters for what the outer one captures
        // twice.
        let middle = || {
            let mut graph = Graph::new();
            let params = [graph.param(ty.clone()), graph.param(ty.clone())];
            let zero = attrs::constant(Arc::new(crate::Literal::scalar(0i32)));
            let zero = graph.push(OpCode::Constant, zero, &[], &[]).expect("fits the table")[0];
            let branches = [body(1, 2), body(0, 2)];
            let operands = [zero, params[1], params[0]];
            let inner =
                graph.push(OpCode::Case, Attrs::none(), &branches, &operands).expect("fits the table");
            Arc::new(Body::new(graph, &[inner[0]]).expect("it exists"))
        };
        let mut graph = Graph::new();
        let (which, x) = (graph.param(index), graph.param(ty.clone()));
        let made = graph.push(OpCode::Case, Attrs::none(), &[middle(), middle()], &[which, x, x]);
        made.expect("fits the table");
        let region = CanonRegion::new(graph, Box::new([false, false]));
        let aliases = Aliases::pair(&region, &[0], &[]);
        let module = lower(&region, &[0], &aliases, Numerics::Fast);
        module.verify().unwrap_or_else(|error| panic!("{error}"));
    }

    type Change<'a> = &'a dyn Fn(&str) -> String;

    /// Text that expresses another function than the region, or something in addition.
    #[test]
    fn what_was_tampered_with_is_refused() {
        let negate = "    %x = \"stablehlo.negate\"(%a0) : (tensor<4xf32>) -> tensor<4xf32>\n";
        let text = module().text;
        let multiply = text.lines().find(|line| line.contains("stablehlo.multiply")).expect("it multiplies");
        let changes: [(&str, Change<'_>); 14] = [
            ("an op more", &|text| {
                text.replace("    \"func.return\"", &format!("{negate}    \"func.return\""))
            }),
            ("an op less", &|text| text.replace(&format!("{multiply}\n"), "")),
            ("another op", &|text| text.replace("stablehlo.multiply", "stablehlo.add")),
            ("another op in a body", &|text| text.replace("stablehlo.add", "stablehlo.maximum")),
            ("another operand", &|text| {
                text.replace(
                    "multiply\"(%a0, ",
                    "multiply\"(%a0, %a0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> // ",
                )
            }),
            ("other operands in a composite", &|text| {
                text.replacen(
                    "subtract\"(%r",
                    "subtract\"(%a0, %a0) : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32> // ",
                    1,
                )
            }),
            ("another type", &|text| text.replace("tensor<4xi32>", "tensor<4xui32>")),
            ("another attribute", &|text| {
                text.replace("limit_indices = array<i64: 1>", "limit_indices = array<i64: 0>")
            }),
            ("other data", &|text| text.replace("\"0x00000000\"", "\"0x0000803F\"")),
            ("another alias", &|text| text.replace("tf.aliasing_output = 3", "tf.aliasing_output = 4")),
            ("no alias", &|text| text.replacen(" {tf.aliasing_output = 3 : i32}", "", 1)),
            ("another return", &|text| text.replace("\"func.return\"(%r", "\"func.return\"(%a0, %r")),
            ("a second function", &|text| {
                let end = text.rfind('}').expect("it ends");
                format!("{}func.func private @f() {{ return }} }}", &text[..end])
            }),
            ("text after the end", &|text| format!("{text}module {{}}")),
        ];
        for (what, change) in changes {
            let module = module();
            let text = change(&module.text);
            assert_ne!(text, module.text, "{what} changed nothing in {text}");
            let error = Module { text, ..module }.verify().expect_err(what);
            assert!(error.to_string().starts_with("bug: "), "{what}: {error}");
        }
    }

    /// The tokens of a text: words and numbers, quoted strings, whitespace, and single other
    /// characters.
    fn pieces(text: &str) -> Vec<&str> {
        let is_word = |c: char| c.is_alphanumeric() || "_.%@#$-".contains(c);
        let (mut found, mut rest) = (Vec::new(), text);
        while let Some(first) = rest.chars().next() {
            let len = match first {
                '"' => rest[1..].find('"').map_or(rest.len(), |end| end + 2),
                c if is_word(c) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
                c if c.is_whitespace() => rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len()),
                c => c.len_utf8(),
            };
            let (piece, after) = rest.split_at(len);
            found.push(piece);
            rest = after;
        }
        found
    }

    /// Deletes, repeats, swaps with its neighbour and replaces each word, number and sign. Any text
    /// that expresses another function is rejected.
    #[test]
    fn every_token_counts() {
        let module = module();
        let pieces = pieces(&module.text);
        assert_eq!(pieces.concat(), module.text);
        let tokens: Vec<usize> = (0..pieces.len()).filter(|&at| !pieces[at].trim().is_empty()).collect();
        let mut distinct: Vec<&str> = tokens.iter().map(|&at| pieces[at]).collect();
        distinct.sort_unstable();
        distinct.dedup();
        let (mut accepted, mut refused) = (Vec::new(), 0);
        for (index, &at) in tokens.iter().enumerate() {
            let with = |other: &str| [&pieces[..at].concat(), other, &pieces[at + 1..].concat()].concat();
            let mut texts = vec![with(""), with(&format!("{0} {0}", pieces[at]))];
            if let Some(&next) = tokens.get(index + 1) {
                let mut swapped = pieces.clone();
                swapped.swap(at, next);
                texts.push(swapped.concat());
            }
            // Each position tries different replacements.
            let others = distinct.iter().cycle().skip(index * 7 % distinct.len()).step_by(5).take(6);
            texts.extend(others.map(|other| with(other)));
            for text in texts.into_iter().filter(|text| *text != module.text) {
                match (Module { text: text.clone(), ..module.clone() }).verify() {
                    Err(_) => refused += 1,
                    Ok(_) => accepted.push((pieces[at], text)),
                }
            }
        }
        // Accepted changes without meaning: unused names of values, functions and blocks, that
        // `main` is public, and the element type of an empty list.
        accepted.retain(|(token, text)| {
            let uses = pieces.iter().filter(|other| *other == token).count();
            let is_name = uses == 1 && token.starts_with(['%', '@']) || *token == "bb0";
            !is_name && *token != "public" && !(*token == "i64" && text.contains("= array<i32>"))
        });
        assert!(accepted.is_empty(), "these are accepted: {accepted:#?}");
        assert!(refused > 1_000, "{refused} changes were refused");
    }

    /// Whitespace, comments, names and locations have no meaning.
    #[test]
    fn what_says_the_same_is_accepted() {
        let module = module();
        let text = module.text.replace("%r1", "%other").replace('\n', "  // a comment\n loc(unknown)");
        // A location follows an op, so it cannot follow a line that opens a block.
        let text = text
            .replace("{  // a comment\n loc(unknown)", "{\n")
            .replace(":  // a comment\n loc(unknown)", ":\n");
        assert!(text.contains("%other") && text.contains("loc(unknown)"));
        Module { text, ..module }.verify().unwrap_or_else(|error| panic!("{error}"));
    }
}
