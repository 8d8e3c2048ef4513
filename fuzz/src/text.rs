//! Arbitrary StableHLO text is refused with a position, or is a function that survives writing and
//! reading unchanged.

use fuseline_fusion::canon::{CanonRegion, decode};
use fuseline_fusion::lower::{Aliases, Numerics, lower};
use fuseline_fusion::text::TextModule;
use fuseline_fusion::{CustomOp, Graph, OpCode};

pub(super) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let module = match TextModule::parse(&text) {
        Ok(module) => module,
        Err(error) => {
            let lines = text.split('\n').count();
            assert!((1..=lines).contains(&error.line()) && error.column() >= 1, "{error:?} in {text:?}");
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    // Used as the body of an op, which is how it gets into a program.
    let Ok(op) = CustomOp::new("fuzz.op", module.main().clone()) else { return };
    let mut graph = Graph::new();
    let operands: Vec<_> = op.operands().iter().map(|ty| graph.param(ty.clone())).collect();
    let bodies = [op.body().clone()];
    // Its total data may exceed the limit of a call.
    if graph.push(OpCode::Composite, op.attrs().clone(), &bodies, &operands).is_err() {
        return;
    }
    let lifted = vec![false; operands.len()].into();
    let region = CanonRegion::new(graph, lifted);
    let back = decode(region.bytes()).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    assert!(back == region, "its bytes decode to another function: {text:?}");
    let outputs: Vec<u32> = (0..region.graph().result_count() as u32).collect();
    let module = lower(&region, &outputs, &Aliases::none(), Numerics::Fast);
    if let Err(error) = module.clone().verify() {
        panic!("{error} in {module}");
    }
}
