//! Regions that can be changed in one respect and built again.
//!
//! Input: a program. Used by the tests of keys and the fuzz targets.

use std::collections::HashMap;
use std::sync::Arc;

use fuseline_fusion::canon::{CanonRegion, EnvFingerprint, can_lift, decode, diff};
use fuseline_fusion::op::OPS;
use fuseline_fusion::program::{Program, ProgramId};
use fuseline_fusion::{Body, Graph, OpCode, Ref};
use fuseline_testgen::{Aim, Entropy};

use super::hostile::{Attempt, hostile_type, pick, place, sampled};

pub fn environment() -> EnvFingerprint {
    EnvFingerprint::of(b"plugin 1, device 0, flags none")
}

/// Inputs that can be lifted, each chosen or not.
pub fn some_lifted(program: &Program, entropy: &mut dyn Entropy) -> Vec<ProgramId> {
    let scalars = program.values.iter().filter(|value| can_lift(value.data.ty()));
    scalars.filter(|_| entropy.draw(2) == 1).map(|value| value.id).collect()
}

/// A graph that can be changed and built again.
#[derive(Clone)]
pub struct Draft {
    pub params: Vec<fuseline_fusion::TensorType>,
    pub lifted: Vec<bool>,
    pub nodes: Vec<(Attempt, Vec<Ref>)>,
}

impl Draft {
    pub fn of(program: &Program, lifted: &[ProgramId]) -> Draft {
        let mut known: HashMap<ProgramId, Ref> = HashMap::new();
        let mut draft = Draft { params: Vec::new(), lifted: Vec::new(), nodes: Vec::new() };
        for value in &program.values {
            known.insert(value.id, Ref::Param(draft.params.len() as u32));
            draft.params.push(value.data.ty().clone());
            draft.lifted.push(lifted.contains(&value.id));
        }
        let mut results = 0;
        for op in &program.ops {
            let operands = op.operands.iter().map(|id| known[id]).collect();
            draft.nodes.push((Attempt::of(&op.signature), operands));
            for &id in &op.results {
                known.insert(id, Ref::Result(results));
                results += 1;
            }
        }
        draft
    }

    /// The region, if every op still fits the op table.
    pub fn region(&self) -> Option<CanonRegion> {
        if self.params.iter().zip(&self.lifted).any(|(ty, &lifted)| lifted && !can_lift(ty)) {
            return None;
        }
        let mut graph = Graph::new();
        for ty in &self.params {
            graph.param(ty.clone());
        }
        for (call, operands) in &self.nodes {
            graph.push(call.def.code, call.attrs.clone(), &call.bodies, operands).ok()?;
        }
        Some(CanonRegion::new(graph, self.lifted.clone().into()))
    }
}

/// The possible changes of a region.
pub const CHANGES: [&str; 9] = [
    "op",
    "attribute",
    "body",
    "operand",
    "parameter",
    "lifted",
    "op added",
    "op dropped",
    "parameter added",
];

/// Another body, of the same type or another one.
fn changed_body(entropy: &mut dyn Entropy, body: &Body) -> Option<Body> {
    let returns = body.returns();
    if returns.is_empty() || entropy.draw(2) == 0 {
        // Another op inside.
        let mut graph = Graph::new();
        for ty in body.graph().params() {
            graph.param(ty.clone());
        }
        let target = place(entropy, body.graph().nodes().len());
        let other = pick(entropy, &OPS.iter().collect::<Vec<_>>());
        for (index, node) in body.graph().nodes().iter().enumerate() {
            let signature = node.signature();
            let op = if index == target { other.code } else { signature.op() };
            graph.push(op, signature.attrs().clone(), signature.bodies(), node.operands()).ok()?;
        }
        return Body::new(graph, returns);
    }
    let mut returns = returns.to_vec();
    let at = place(entropy, returns.len());
    returns[at] = Ref::Param(entropy.draw(body.graph().params().len() as u32));
    Body::new(body.graph().clone(), &returns)
}

/// Makes one change. Returns `None` if it is impossible for this draft.
pub fn change(draft: &mut Draft, what: &str, entropy: &mut dyn Entropy) -> Option<()> {
    let param = place(entropy, draft.params.len());
    let node = place(entropy, draft.nodes.len());
    match what {
        "op" => draft.nodes.get_mut(node)?.0.def = pick(entropy, &OPS.iter().collect::<Vec<_>>()),
        "attribute" => draft.nodes.get_mut(node)?.0.change_attr(entropy),
        "body" => {
            let bodies = &mut draft.nodes.get_mut(node)?.0.bodies;
            let at = place(entropy, bodies.len());
            let changed = changed_body(entropy, bodies.get(at)?)?;
            bodies[at] = Arc::new(changed);
        }
        "operand" => {
            let before: usize = draft.nodes.get(..node)?.len();
            let operands = &mut draft.nodes.get_mut(node)?.1;
            let at = place(entropy, operands.len());
            *operands.get_mut(at)? = if before == 0 || entropy.draw(2) == 0 {
                Ref::Param(param as u32)
            } else {
                Ref::Result(entropy.draw(before as u32))
            };
        }
        "constant" => {
            let mut constants = draft.nodes.iter_mut().filter(|(call, _)| call.def.code == OpCode::Constant);
            constants.next()?.0.change_attr(entropy);
        }
        "element type" | "shape" => {
            let ty = draft.params.get_mut(param)?;
            let other = hostile_type(entropy, ty)?;
            let is_wanted =
                if what == "shape" { other.dtype() == ty.dtype() } else { other.shape() == ty.shape() };
            *ty = is_wanted.then_some(other)?;
        }
        "lifted" => {
            let lifted = draft.lifted.get_mut(param)?;
            *lifted = !*lifted;
        }
        "op added" => {
            let again = draft.nodes.get(node)?.clone();
            draft.nodes.push(again);
        }
        "op dropped" => {
            draft.nodes.pop()?;
        }
        _ => {
            draft.params.push(draft.params.get(param)?.clone());
            draft.lifted.push(false);
        }
    }
    Some(())
}

/// Whether two drafts are equal, without the encoding.
pub fn is_same(a: &Draft, b: &Draft) -> bool {
    let same_call = |(x, p): &(Attempt, Vec<Ref>), (y, q): &(Attempt, Vec<Ref>)| {
        x.def.code == y.def.code && x.attrs == y.attrs && x.bodies == y.bodies && p == q
    };
    a.params == b.params
        && a.lifted == b.lifted
        && a.nodes.len() == b.nodes.len()
        && a.nodes.iter().zip(&b.nodes).all(|(x, y)| same_call(x, y))
}

/// Checks that every change of a program's region, or of a constant beside it, changes its key.
/// Calls `count` for each. Tries a number of changes of each kind.
pub fn every_change_is_told(
    program: &Program,
    how: &mut dyn Entropy,
    tries: usize,
    count: impl Fn(&'static str),
) -> Result<(), String> {
    let lifted = some_lifted(program, how);
    let mut draft = Draft::of(program, &lifted);
    if let Some(constant) = sampled(OpCode::Constant.def(), how, Aim::Everything) {
        draft.nodes.push((Attempt::of(&constant.signature), Vec::new()));
    }
    let Some(region) = draft.region() else { return Err("a sampled program is refused".to_owned()) };
    let environment = environment();
    for what in CHANGES {
        for _ in 0..tries {
            let mut changed = draft.clone();
            if change(&mut changed, what, how).is_none() || is_same(&draft, &changed) {
                continue;
            }
            let Some(other) = changed.region() else { continue };
            count(what);
            let told = region.key(&environment) != other.key(&environment)
                && region.bytes() != other.bytes()
                && region != other
                && !diff(&region, &other).is_empty();
            if !told {
                let (a, b) = (region.graph(), other.graph());
                return Err(format!("{what} changed nothing: {a:?} and {b:?}"));
            }
        }
    }
    Ok(())
}

/// Checks that decoding these bytes does not panic and does not return the region.
fn is_told_apart(region: &CanonRegion, bytes: &[u8]) -> Result<(), String> {
    match decode(bytes) {
        Err(_) => Ok(()),
        Ok(other) if &other != region && other.graph() != region.graph() => Ok(()),
        // Lifted inputs are stored beside the graph.
        Ok(other) if &other != region && other.lifted() != region.lifted() => Ok(()),
        Ok(other) => {
            let (graph, found) = (region.graph(), other.graph());
            Err(format!("{bytes:?} reads as {found:?}, which is {graph:?}"))
        }
    }
}

/// Checks that the canonical bytes of a program's region decode to it, and that other bytes do not;
/// tries at most `most` of each kind.
pub fn has_one_reading(program: &Program, noise: &mut dyn Entropy, most: usize) -> Result<(), String> {
    let lifted = some_lifted(program, noise);
    let Some(region) = Draft::of(program, &lifted).region() else {
        return Err("a sampled program is refused".to_owned());
    };
    let bytes = region.bytes();
    let back = decode(bytes).map_err(|error| error.to_string())?;
    if back.graph() != region.graph() || back.lifted() != region.lifted() || back.bytes() != bytes {
        return Err(format!("{:?} decodes to {:?}", region.graph(), back.graph()));
    }
    for cut in 0..bytes.len().min(most) {
        let len = if bytes.len() <= most { cut } else { place(noise, bytes.len()) };
        if decode(&bytes[..len]).is_ok() {
            return Err(format!("{len} of {} bytes are a region", bytes.len()));
        }
    }
    is_told_apart(&region, &[bytes, &[0]].concat())?;
    // LEB128 has longer encodings of every integer.
    for at in 0..bytes.len().min(200).min(most) {
        let at = if bytes.len() <= most || most >= 200 { at } else { place(noise, bytes.len()) };
        let long = [&bytes[..at], &[bytes[at] | 0x80, 0], &bytes[at + 1..]].concat();
        is_told_apart(&region, &long)?;
    }
    // Every bit of a short encoding, and as many bits of a long one.
    let flips = (bytes.len() * 8).min(512).min(most);
    for flip in 0..flips {
        let bit = if bytes.len() * 8 == flips { flip } else { place(noise, bytes.len() * 8) };
        let mut flipped = bytes.to_vec();
        flipped[bit / 8] ^= 1 << (bit % 8);
        is_told_apart(&region, &flipped)?;
    }
    for _ in 0..most.min(20) {
        // Several bytes at once, and moved parts.
        let mut broken = bytes.to_vec();
        let (from, to) = (place(noise, bytes.len()), place(noise, bytes.len()));
        match noise.draw(3) {
            0 => broken[from] = noise.draw(256) as u8,
            1 => broken.swap(from, to),
            _ => broken = [&bytes[..from], &bytes[to..]].concat(),
        }
        if broken != bytes {
            is_told_apart(&region, &broken)?;
        }
    }
    Ok(())
}
