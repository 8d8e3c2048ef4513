//! Graphs under construction, and the scopes of names.
//!
//! StableHLO's regions can use the values around them; our bodies can only use their parameters. A
//! *level* is a graph under construction: that of `main` or of a body. A *frame* is a scope of
//! names: of a function, or of a region, which sees the frames around it up to the function. Called
//! functions are inlined, so a frame can be on the same level as the frame around it.
//!
//! A name of a value of an outer level is captured ([`Capture`]) level by level, each value once.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::{Problem, Result, Shown};
use super::scan::{fault, other};
use crate::attr::Attrs;
use crate::ir::{Body, Graph, OpCode, Ref, Refs, Signature};
use crate::limits::MAX_BODY_DEPTH;
use crate::shape::TensorType;

/// How a region captures a value of the graph around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Capture {
    /// As an additional operand of the op and an additional parameter of the body: `if`, `case`.
    Operand,
    /// As `Operand`, except that scalar constants are copied, because XLA looks for loop bounds and
    /// steps inside the loop: `while`.
    Carried,
    /// Scalar constants are copied, other values are rejected: bodies that are called for elements.
    Constant,
}

/// A graph under construction.
struct Level {
    graph: Graph,
    capture: Capture,
    /// Captured values: the index of their level and their reference there, with the reference
    /// here.
    known: HashMap<(usize, Ref), Ref>,
    /// Captured values of the next outer level. They are parameters here, after those of the op.
    captured: Vec<Ref>,
}

/// A scope of names.
struct Frame<'t> {
    level: usize,
    names: HashMap<&'t str, Refs>,
    /// Whether it is the scope of a function, which cannot see the names around it.
    is_function: bool,
}

/// A body with incomplete parameters: other regions of its op may add captures.
pub(super) struct OpenBody {
    graph: Graph,
    returns: Vec<Ref>,
    /// Number of parameters without captures.
    own: usize,
}

/// See the module documentation.
pub(super) struct Builder<'t> {
    levels: Vec<Level>,
    frames: Vec<Frame<'t>>,
    /// Ops and calls so far, including those in bodies.
    ops: usize,
    most_ops: usize,
    /// Bytes of encoded calls so far, and their maximum.
    bytes: usize,
    most_bytes: usize,
    /// Bytes of text that calls have caused to be read again.
    reread: usize,
}

/// Maximum nesting of function calls. Each uses stack of the reader.
const MAX_CALL_DEPTH: usize = 64;

/// Maximum number of bytes of functions that are read again for calls. It bounds the time for a
/// short text to about a second.
const MAX_REREAD: usize = 256 << 20;

/// Maximum number of bytes of the canonical encoding that inlining may produce: a constant, plus a
/// multiple of the length of the text.
const FREE_BYTES: usize = 8 << 20;
const BYTES_PER_BYTE: usize = 16;

impl<'t> Builder<'t> {
    /// For a text of `length` bytes, which may contain at most `most_ops` ops.
    pub(super) fn new(length: usize, most_ops: usize) -> Builder<'t> {
        let most_bytes = length.saturating_mul(BYTES_PER_BYTE).saturating_add(FREE_BYTES);
        Builder { levels: Vec::new(), frames: Vec::new(), ops: 0, most_ops, bytes: 0, most_bytes, reread: 0 }
    }

    /// The current graph.
    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("bug: an op outside every function")
    }

    /// Index of the current level.
    fn depth(&self) -> usize {
        self.levels.len() - 1
    }

    /// Begins a graph.
    pub(super) fn open_level(&mut self, capture: Capture, at: usize) -> Result<()> {
        if self.levels.len() > MAX_BODY_DEPTH {
            return Err(other(at, format!("regions nest more than {MAX_BODY_DEPTH} deep")));
        }
        let level = Level { graph: Graph::new(), capture, known: HashMap::new(), captured: Vec::new() };
        self.levels.push(level);
        Ok(())
    }

    /// Begins a scope on the current level.
    pub(super) fn open_frame(&mut self, is_function: bool, at: usize) -> Result<()> {
        if self.frames.len() >= MAX_CALL_DEPTH + MAX_BODY_DEPTH {
            return Err(other(at, format!("calls nest more than {MAX_CALL_DEPTH} deep")));
        }
        self.frames.push(Frame { level: self.depth(), names: HashMap::new(), is_function });
        Ok(())
    }

    /// Ends a scope.
    pub(super) fn close_frame(&mut self) {
        self.frames.pop();
    }

    /// Adds a parameter to the current graph.
    pub(super) fn param(&mut self, ty: TensorType) -> Ref {
        self.level().graph.param(ty)
    }

    /// Adds parameters to the current level for values that another region of the same op captured.
    pub(super) fn capture_all(&mut self, values: &[Ref]) -> Result<()> {
        let outer = self.depth().checked_sub(1).expect("bug: a region outside every function");
        for &value in values {
            self.bring(outer, value, self.depth(), 0)?;
        }
        Ok(())
    }

    /// Ends a graph that returns values; returns its captures and the body.
    pub(super) fn close_level(&mut self, returns: &[Ref]) -> (Vec<Ref>, OpenBody) {
        let level = self.levels.pop().expect("bug: a region was ended twice");
        let own = level.graph.params().len() - level.captured.len();
        (level.captured, OpenBody { graph: level.graph, returns: returns.to_vec(), own })
    }

    /// Binds a name to values.
    pub(super) fn name(&mut self, name: &'t str, values: Refs, at: usize) -> Result<()> {
        let frame = self.frames.last_mut().expect("bug: a name outside every function");
        match frame.names.insert(name, values) {
            None => Ok(()),
            Some(_) => Err(other(at, format!("%{} is defined twice", Shown(name)))),
        }
    }

    /// The value of a name, in the current graph. `index` selects one of several results.
    pub(super) fn value(&mut self, name: &str, index: Option<usize>, at: usize) -> Result<Ref> {
        let mut found = None;
        for frame in self.frames.iter().rev() {
            if let Some(values) = frame.names.get(name) {
                found = Some((frame.level, values));
                break;
            }
            if frame.is_function {
                break;
            }
        }
        let Some((level, values)) = found else {
            return Err(other(at, format!("%{} is not defined before this", Shown(name))));
        };
        let Some(&value) = values.get(index.unwrap_or(0)) else {
            return Err(other(at, format!("%{} has {} results", Shown(name), values.len())));
        };
        if index.is_none() && values.len() > 1 {
            return Err(other(
                at,
                format!("%{} has {} results; the first is `#0`", Shown(name), values.len()),
            ));
        }
        self.bring(level, value, self.depth(), at)
    }

    /// Captures a value of one level into a level inside it.
    fn bring(&mut self, from: usize, value: Ref, to: usize, at: usize) -> Result<Ref> {
        if from == to {
            return Ok(value);
        }
        if let Some(&known) = self.levels[to].known.get(&(from, value)) {
            return Ok(known);
        }
        let graph = &self.levels[from].graph;
        let scalar = graph.maker(value).map(|node| graph.nodes()[node].signature());
        let scalar =
            scalar.filter(|made| made.op() == OpCode::Constant && made.results()[0].rank() == 0).cloned();
        let own = match (self.levels[to].capture, scalar) {
            (Capture::Constant | Capture::Carried, Some(constant)) => {
                self.spend(&constant, at)?;
                self.levels[to].graph.push_signature(constant, Refs::new())[0]
            }
            (Capture::Constant, None) => {
                return Err(other(
                    at,
                    "this value is computed outside the region, which can only use its arguments and scalar constants",
                ));
            }
            (Capture::Operand | Capture::Carried, _) => {
                let outer = self.bring(from, value, to - 1, at)?;
                let ty = self.type_at(to - 1, outer);
                let level = &mut self.levels[to];
                // It may have been captured through another level already.
                match level.known.get(&(to - 1, outer)) {
                    Some(&known) => known,
                    None => {
                        level.captured.push(outer);
                        let own = level.graph.param(ty);
                        level.known.insert((to - 1, outer), own);
                        own
                    }
                }
            }
        };
        self.levels[to].known.insert((from, value), own);
        Ok(own)
    }

    fn type_at(&self, level: usize, value: Ref) -> TensorType {
        self.levels[level].graph.type_of(value).expect("bug: a name refers to a missing value").clone()
    }

    /// Type of a value of the current graph.
    pub(super) fn type_of(&self, value: Ref) -> TensorType {
        self.type_at(self.depth(), value)
    }

    /// Counts an op, or a call, which costs as much.
    fn count_op(&mut self, at: usize) -> Result<()> {
        self.ops += 1;
        if self.ops > self.most_ops {
            return Err(other(
                at,
                format!("with its calls inlined the module has more than {} ops", self.most_ops),
            ));
        }
        Ok(())
    }

    /// Counts a call of a function with `length` bytes of text, which are read again.
    pub(super) fn count_call(&mut self, length: usize, at: usize) -> Result<()> {
        self.count_op(at)?;
        self.reread = self.reread.saturating_add(length);
        if self.reread > MAX_REREAD {
            return Err(other(at, "the module calls large functions too many times"));
        }
        Ok(())
    }

    fn spend(&mut self, signature: &Signature, at: usize) -> Result<()> {
        self.count_op(at)?;
        self.bytes += signature.encoded().len();
        if self.bytes > self.most_bytes {
            return Err(other(
                at,
                "with its calls inlined the module is too large; pass large constants as arguments",
            ));
        }
        Ok(())
    }

    /// Checks an op on values of the current graph.
    pub(super) fn infer(
        &self,
        op: OpCode,
        attrs: Attrs,
        bodies: &[Arc<Body>],
        operands: &[Ref],
        at: usize,
    ) -> Result<Arc<Signature>> {
        let types: Vec<TensorType> = operands.iter().map(|&operand| self.type_of(operand)).collect();
        let signature = Signature::infer(op, attrs, bodies, &types);
        signature.map(Arc::new).map_err(|error| fault(at, Problem::Op(error)))
    }

    /// Adds a checked op to the current graph.
    pub(super) fn add(&mut self, signature: Arc<Signature>, operands: &[Ref], at: usize) -> Result<Refs> {
        self.spend(&signature, at)?;
        Ok(self.level().graph.push_signature(signature, Refs::from_slice(operands)))
    }
}

impl OpenBody {
    /// A body without captures.
    pub(super) fn of(body: &Body) -> OpenBody {
        let graph = body.graph().clone();
        OpenBody { own: graph.params().len(), graph, returns: body.returns().to_vec() }
    }

    /// Completes the body with parameters for `captured` values of the given types, some of which
    /// it may have already. With `passed_on`, it also returns them unchanged.
    pub(super) fn close(mut self, captured: &[TensorType], passed_on: bool) -> Arc<Body> {
        for ty in captured.iter().skip(self.graph.params().len() - self.own) {
            self.graph.param(ty.clone());
        }
        if passed_on {
            let first = self.own as u32;
            self.returns.extend((first..first + captured.len() as u32).map(Ref::Param));
        }
        Arc::new(
            Body::new(self.graph, &self.returns).expect("bug: a region returns a value of another graph"),
        )
    }
}
