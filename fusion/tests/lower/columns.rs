//! Reductions of columns in windows agree with the interpreter.

use std::sync::Arc;

use fuseline_fusion::canon::CanonRegion;
use fuseline_fusion::lower::passes::{Plain, in_windows, plain};
use fuseline_fusion::lower::{Aliases, Numerics, ScalarPack, Target, lower_for};
use fuseline_fusion::op::attrs;
use fuseline_fusion::{Attrs, Body, DType, Graph, Literal, OpCode, TensorType};
use fuseline_interp as interp;

use super::run;

/// A region of one reduction.
fn region(op: OpCode, dtype: DType, dims: &[u64], reduced: &[i64]) -> CanonRegion {
    let mut graph = Graph::new();
    let x = graph.param(TensorType::of(dtype, dims).expect("small"));
    let start = graph.param(TensorType::scalar(dtype));
    let body = Arc::new(Body::binary(op, TensorType::scalar(dtype)).expect("a body"));
    graph.push(OpCode::Reduce, attrs::dimensions(reduced), &[body], &[x, start]).expect("a reduction");
    CanonRegion::new(graph, Box::new([false; 2]))
}

fn windowed(region: &CanonRegion) -> Plain {
    in_windows(plain(region, &[0], &ScalarPack::of(Target::Any, region, Numerics::Fast), &[]))
}

fn ops(function: &Body) -> Vec<OpCode> {
    function.graph().nodes().iter().map(|node| node.signature().op()).collect()
}

/// Small integers: every order of combining them gives the same float.
fn data(dtype: DType, dims: &[u64]) -> Arc<Literal> {
    let number =
        |index: u64| Literal::of_f64(dtype, (index * 7919 % 11) as f64 - 4.0 * f64::from(dtype.is_float()));
    let bytes: Vec<u8> =
        (0..dims.iter().product()).flat_map(|index| number(index).bytes().to_vec()).collect();
    Arc::new(Literal::from_bytes(TensorType::of(dtype, dims).expect("small"), bytes).expect("as many"))
}

#[test]
fn windows_give_what_the_reduction_gives() {
    use OpCode::{Add, And, Maximum, Minimum, Xor};
    let shapes: [(&[u64], &[i64]); 6] = [
        (&[40, 64], &[0]),
        // The last window is not full, and there are windows of windows.
        (&[1100, 9], &[0]),
        (&[8, 9, 40], &[1, 0]),
        (&[2, 50, 3, 8], &[1]),
        (&[33, 2, 33, 8], &[2, 0]),
        (&[1, 70, 1, 32], &[0, 1]),
    ];
    for (dims, reduced) in shapes {
        for (op, dtype) in [
            (Add, DType::F32),
            (Maximum, DType::F64),
            (Add, DType::I32),
            (Minimum, DType::U8),
            (And, DType::U32),
            (Xor, DType::I64),
        ] {
            let region = region(op, dtype, dims, reduced);
            let function = windowed(&region);
            assert!(
                ops(&function.function).contains(&OpCode::ReduceWindow),
                "{op} over {reduced:?} of {dims:?}"
            );
            // The initial value is used once.
            let operands = vec![data(dtype, dims), Arc::new(Literal::of_f64(dtype, 3.0))];
            let wanted = interp::run(region.graph(), &operands).expect("runs");
            let found = run(&region, Numerics::Fast, &function, &[operands]);
            assert_eq!(found[0], wanted, "{op} of {dtype} over {reduced:?} of {dims:?}");
            let module = lower_for(Target::CPU, &region, &[0], &Aliases::none(), Numerics::Fast, &[]);
            assert!(module.text().contains("reduce_window"));
            module.verify().unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

#[test]
fn other_reductions_stay() {
    let stays = |op, dtype, dims: &[u64], reduced: &[i64]| {
        ops(&windowed(&region(op, dtype, dims, reduced)).function) == [OpCode::Reduce]
    };
    assert!(!stays(OpCode::Add, DType::F32, &[64, 64], &[0]));
    // Rows; everything; few columns; few rows; few elements; a type that would round.
    assert!(stays(OpCode::Add, DType::F32, &[64, 64], &[1]));
    assert!(stays(OpCode::Add, DType::F32, &[64, 64], &[0, 1]));
    assert!(stays(OpCode::Add, DType::F32, &[64, 64, 1], &[1]));
    assert!(stays(OpCode::Add, DType::F32, &[4096, 4], &[0]));
    assert!(stays(OpCode::Add, DType::F32, &[32, 4096], &[0]));
    assert!(stays(OpCode::Add, DType::F32, &[40, 8], &[0]));
    assert!(stays(OpCode::Add, DType::BF16, &[64, 64], &[0]));
    let region = region(OpCode::Add, DType::F32, &[64, 64], &[0]);
    for (target, numerics) in [(Target::Any, Numerics::Fast), (Target::CPU, Numerics::Exact)] {
        let module = lower_for(target, &region, &[0], &Aliases::none(), numerics, &[]);
        assert!(!module.text().contains("reduce_window"), "{target:?}, {numerics}");
    }
}

/// The sign of zero is kept: a sum of only -0 is -0.
#[test]
fn a_sum_of_negative_zeros_is_one() {
    let region = region(OpCode::Add, DType::F32, &[40, 64], &[0]);
    let zeros = Literal::from_bytes(
        TensorType::of(DType::F32, &[40, 64]).unwrap(),
        (-0.0f32).to_le_bytes().repeat(2560),
    );
    let operands = vec![Arc::new(zeros.unwrap()), Arc::new(Literal::scalar(-0.0f32))];
    let found = run(&region, Numerics::Fast, &windowed(&region), &[operands]);
    assert!(found[0][0].bytes().chunks(4).all(|bytes| bytes == (-0.0f32).to_le_bytes()));
}

/// In a loop body that captures the operand of the reduction.
#[test]
fn columns_in_a_loop_are_in_windows() {
    let (ty, sums) =
        (TensorType::of(DType::F32, &[64, 64]).unwrap(), TensorType::of(DType::F32, &[64]).unwrap());
    let mut test = Graph::new();
    test.param(sums.clone());
    test.param(ty.clone());
    let yes = attrs::constant(Arc::new(Literal::scalar(true)));
    let yes = test.push(OpCode::Constant, yes, &[], &[]).unwrap()[0];
    let mut body = Graph::new();
    let state = body.param(sums.clone());
    let x = body.param(ty.clone());
    let start = attrs::constant(Arc::new(Literal::scalar(0.0f32)));
    let start = body.push(OpCode::Constant, start, &[], &[]).unwrap()[0];
    let add = Arc::new(Body::binary(OpCode::Add, TensorType::scalar(DType::F32)).unwrap());
    let sum = body.push(OpCode::Reduce, attrs::dimensions(&[0]), &[add], &[x, start]).unwrap()[0];
    let next = body.push(OpCode::Add, Attrs::none(), &[], &[state, sum]).unwrap()[0];
    let bodies = [Arc::new(Body::new(test, &[yes]).unwrap()), Arc::new(Body::new(body, &[next, x]).unwrap())];
    let mut graph = Graph::new();
    let params = [graph.param(sums), graph.param(ty)];
    graph.push(OpCode::While, Attrs::none(), &bodies, &params).expect("a loop");
    let region = CanonRegion::new(graph, Box::new([false; 2]));
    let module = lower_for(Target::CPU, &region, &[0], &Aliases::none(), Numerics::Fast, &[]);
    assert!(module.text().contains("reduce_window"));
    module.verify().unwrap_or_else(|error| panic!("{error}"));
}
