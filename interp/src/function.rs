//! Bodies that are called once per element.
//!
//! Input: the [`Body`] of a `reduce` or a similar op, then the bits of its scalar arguments.
//! Output: the bits of its results. Nearly all bodies consist of elementwise ops on scalars; they
//! become a list of kernels on registers. Any other body runs as a graph. Both paths run the same
//! kernels, so they give the same bits.

use std::sync::Arc;

use fuseline_fusion::element::{Bits, Elements, Store};
use fuseline_fusion::subnormal::{self, flushed_bits};
use fuseline_fusion::{Body, DType, DTypeSet, Literal, Node, OpCode, Ref, Signature, TensorType};

use super::kernel::Kernel;
use super::subnormal::flush_underflow;
use super::{Arithmetic, EvalError, run_body};

/// An op of a body on scalars.
#[derive(Clone, Copy)]
enum ScalarOp {
    Constant(Bits),
    Apply(Kernel, [usize; 3]),
    /// A kernel on a device that flushes subnormal numbers, with the flushed types of operands and
    /// result.
    Flush(Kernel, [usize; 3], Flushes),
}

/// The types of operands and result that are flushed.
#[derive(Clone, Copy)]
struct Flushes {
    op: OpCode,
    /// The types of the first and the last operand.
    types: [DType; 2],
    operands: [Option<DType>; 3],
    result: Option<DType>,
}

impl Flushes {
    fn of(signature: &Signature, flushed: DTypeSet) -> Option<Flushes> {
        let flushes = subnormal::access(signature).flushes(flushed);
        let of = |ty: &TensorType| flushes.contains(ty.dtype().part()).then_some(ty.dtype());
        let mut operands = [None; 3];
        for (flushes, ty) in operands.iter_mut().zip(signature.operands()) {
            *flushes = of(ty);
        }
        let result = of(&signature.results()[0]);
        let is_any = result.is_some() || operands.iter().any(Option::is_some);
        let types = signature.operands();
        let types = [types.first()?.dtype(), types.last()?.dtype()];
        is_any.then_some(Flushes { op: signature.op(), types, operands, result })
    }

    fn apply(&self, kernel: Kernel, operands: [Bits; 3]) -> Bits {
        let flush = |dtype: Option<DType>, bits| dtype.map_or(bits, |dtype| flushed_bits(dtype, bits));
        let [a, b, c] = operands;
        let [x, y, z] = self.operands;
        let operands = [flush(x, a), flush(y, b), flush(z, c)];
        let result = flush(self.result, kernel.apply(operands));
        match self.result {
            Some(dtype) => flush_underflow(self.op, self.types, [operands[0], operands[1]], dtype, result),
            None => result,
        }
    }
}

/// A body that is ready to be called.
pub(super) struct Function<'a> {
    body: &'a Body,
    arithmetic: Arithmetic,
    /// One step per node; `None` if a node needs more than scalars.
    steps: Option<Vec<ScalarOp>>,
    /// The arguments, then the result of each step.
    registers: Vec<Bits>,
    /// Registers of the returns.
    returns: Vec<usize>,
    results: Vec<Bits>,
}

impl<'a> Function<'a> {
    pub(super) fn new(body: &'a Body, arithmetic: Arithmetic) -> Function<'a> {
        let graph = body.graph();
        let params = graph.params().len();
        // Correct because every node has one result, which `step` ensures.
        let register = |value: &Ref| match *value {
            Ref::Param(index) => index as usize,
            Ref::Result(index) => params + index as usize,
        };
        let steps: Option<Vec<ScalarOp>> =
            graph.nodes().iter().map(|node| step(node, arithmetic.flushed, register)).collect();
        let steps = steps.filter(|_| graph.params().iter().all(|ty| ty.rank() == 0));
        Function {
            body,
            arithmetic: arithmetic.in_order(),
            returns: body.returns().iter().map(register).collect(),
            registers: vec![0; params + graph.nodes().len()],
            results: vec![0; body.returns().len()],
            steps,
        }
    }

    /// Element types of the returns.
    pub(super) fn types(&self) -> Vec<DType> {
        self.body.return_types().map(TensorType::dtype).collect()
    }

    /// The results for the given arguments.
    pub(super) fn call(&mut self, arguments: impl IntoIterator<Item = Bits>) -> Result<&[Bits], EvalError> {
        let params = self.body.graph().params();
        for (register, argument) in self.registers.iter_mut().zip(arguments) {
            *register = argument;
        }
        match &self.steps {
            Some(steps) => {
                for (index, step) in steps.iter().enumerate() {
                    self.registers[params.len() + index] = match *step {
                        ScalarOp::Constant(bits) => bits,
                        ScalarOp::Apply(kernel, operands) => {
                            kernel.apply(operands.map(|place| self.registers[place]))
                        }
                        ScalarOp::Flush(kernel, operands, flushes) => {
                            flushes.apply(kernel, operands.map(|place| self.registers[place]))
                        }
                    };
                }
                for (result, &place) in self.results.iter_mut().zip(&self.returns) {
                    *result = self.registers[place];
                }
            }
            None => {
                let scalar =
                    |(ty, &bits): (&TensorType, &Bits)| Arc::new(Store::filled(ty.clone(), bits).finish());
                let arguments: Vec<Arc<Literal>> = params.iter().zip(&self.registers).map(scalar).collect();
                let returned = run_body(self.arithmetic, self.body, &arguments)?;
                for (result, data) in self.results.iter_mut().zip(returned) {
                    *result = Elements::of(&data).get(0);
                }
            }
        }
        Ok(&self.results)
    }
}

/// The node as a step, if it is an elementwise op on scalars with one result.
fn step(node: &Node, flushed: DTypeSet, register: impl Fn(&Ref) -> usize) -> Option<ScalarOp> {
    let signature = node.signature();
    let all_scalar = signature.operands().iter().chain(signature.results()).all(|ty| ty.rank() == 0);
    if !all_scalar || signature.results().len() != 1 {
        return None;
    }
    let kernel = match signature.op() {
        OpCode::Constant => {
            return Some(ScalarOp::Constant(Elements::of(signature.attrs().view().dense(0)).get(0)));
        }
        OpCode::BroadcastInDim | OpCode::Reshape | OpCode::Transpose => Kernel::Identity,
        _ if !signature.bodies().is_empty() => return None,
        _ => Kernel::of(signature)?,
    };
    let mut operands = [0; 3];
    for (place, operand) in operands.iter_mut().zip(node.operands()) {
        *place = register(operand);
    }
    Some(match Flushes::of(signature, flushed) {
        Some(flushes) => ScalarOp::Flush(kernel, operands, flushes),
        None => ScalarOp::Apply(kernel, operands),
    })
}

#[cfg(test)]
mod tests {
    use fuseline_testgen::{Aim, Domain, ProgramOptions, ProgramSampler, Seeded, fill, graph_of};

    use super::*;

    /// A sampled program as a body: its inputs are parameters, its results the returns.
    fn body(seed: u64, accepts: fn(&fuseline_fusion::OpDef) -> bool) -> Body {
        let options = ProgramOptions { accepts, ..ProgramOptions::new(Aim::Everything) };
        let program = ProgramSampler::sample(options, &mut Seeded::new(seed), 1 + seed as usize % 4).program;
        let (graph, known) = graph_of(&program);
        let returns: Vec<Ref> = program.outputs.iter().map(|id| known[id]).collect();
        Body::new(graph, &returns).expect("the values exist")
    }

    /// Without and with flushed types.
    const FLUSHED: [DTypeSet; 2] = [DTypeSet::NONE, DTypeSet::of(&[DType::BF16, DType::F32, DType::F64])];

    /// Bodies on scalars take the fast path, and both paths give the same bits.
    #[test]
    fn both_ways_give_the_same_bits() {
        let elementwise = |def: &fuseline_fusion::OpDef| {
            def.fusibility == fuseline_fusion::op::Fusibility::Elementwise
                || matches!(def.code, OpCode::Constant | OpCode::Reshape | OpCode::BroadcastInDim)
        };
        let mut short = 0;
        for seed in 0..3_000 {
            let body = body(seed, elementwise);
            if body.graph().params().iter().chain(body.return_types()).any(|ty| ty.rank() > 0) {
                continue;
            }
            let arithmetic = Arithmetic { flushed: FLUSHED[seed as usize % 2], ..Arithmetic::REFERENCE };
            let mut function = Function::new(&body, arithmetic);
            short += usize::from(function.steps.is_some());
            let mut entropy = Seeded::new(!seed);
            let params = body.graph().params().iter();
            let arguments: Vec<Arc<Literal>> =
                params.map(|ty| Arc::new(fill(&mut entropy, ty, Domain::Any, Aim::Everything))).collect();
            let bits = arguments.iter().map(|argument| Elements::of(argument).get(0));
            let results = function.call(bits).expect("runs").to_vec();
            let wanted = run_body(arithmetic, &body, &arguments).expect("runs");
            let wanted: Vec<Bits> = wanted.iter().map(|data| Elements::of(data).get(0)).collect();
            assert_eq!(results, wanted, "seed {seed}: {:?}", body.graph());
        }
        assert!(short > 100, "only {short} bodies took the short way");
    }
}
