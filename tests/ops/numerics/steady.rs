//! With exact numerics a number has one result, whatever its position.

use fuseline::fusion::op::{Fusibility, OPS, OpDef, Operands};
use fuseline::{Attrs, DType, Engine, Literal, Mode, Numerics, OpCode, Result, with_mode};
use fuseline_testgen::{Entropy, Seeded};

use super::{different, engine};

/// The number of rows of the longest length.
const ROWS: usize = 24;
const LONGEST: usize = 80;

/// Lengths of rows whose ends fall on all positions of a vector register, and a scalar.
const LENGTHS: [usize; 9] = [1, 2, 3, 5, 18, 35, 63, 66, 79];

/// An op on the first columns of some data. `None` if it does not take the type.
fn on_columns(
    engine: &Engine,
    def: &OpDef,
    data: &[Vec<f32>],
    columns: usize,
    dtype: DType,
) -> Result<Option<Literal>> {
    let mut operands = Vec::new();
    for data in data {
        let rows = data.chunks(LONGEST);
        let part: Vec<f32> = rows.flat_map(|row| &row[..columns]).copied().collect();
        operands.push(engine.tensor(&part, &[ROWS, columns])?.convert(dtype)?);
    }
    let operands: Vec<_> = operands.iter().collect();
    match engine.stream().record(def.code, Attrs::none(), &[], &operands) {
        Ok(made) if made[0].dtype() == dtype => made[0].to_literal().map(Some),
        _ => Ok(None),
    }
}

/// The first columns of the matrix with the longest rows.
fn first_columns(whole: &Literal, columns: usize) -> Literal {
    let size = whole.dtype().size();
    let rows = whole.bytes().chunks(LONGEST * size);
    let bytes: Vec<u8> = rows.flat_map(|row| &row[..columns * size]).copied().collect();
    let ty = fuseline::TensorType::of(whole.dtype(), &[ROWS as u64, columns as u64]).unwrap();
    Literal::from_bytes(ty, bytes).unwrap()
}

/// Ops whose result depends on the position of a number. Each op is compared only with itself here.
fn found(engine: &Engine, ops: &[&OpDef], dtype: DType) -> Vec<OpCode> {
    let mut found = Vec::new();
    for def in ops {
        let Operands::Fixed(names) = def.operands else { continue };
        let mut random = Seeded::new(7);
        let mut element = || {
            let scale = [0.01, 1.0, 3.0, 30.0][random.draw(4) as usize];
            (random.draw(2_000_001) as f32 / 1_000_000.0 - 0.5) * scale
        };
        let data: Vec<Vec<f32>> =
            names.iter().map(|_| (0..ROWS * LONGEST).map(|_| element()).collect()).collect();
        let Some(whole) = on_columns(engine, def, &data, LONGEST, dtype).unwrap() else { continue };
        let depends = LENGTHS.iter().any(|&columns| {
            let part = on_columns(engine, def, &data, columns, dtype).unwrap().expect("as on longer rows");
            different(&part, &first_columns(&whole, columns)) > 0
        });
        if depends {
            println!("{} of {dtype} depends on where a number stands", def.name);
            found.push(def.code);
        }
    }
    found
}

/// The reference for regions is itself independent of the shape. This is the purpose of the stable
/// ops, which all programs use.
#[test]
fn a_number_has_one_result() {
    let common = [
        OpCode::Exponential,
        OpCode::Log,
        OpCode::LogPlusOne,
        OpCode::Rsqrt,
        OpCode::Sqrt,
        OpCode::Tanh,
        OpCode::Logistic,
        OpCode::Divide,
        OpCode::Power,
        OpCode::Sine,
        OpCode::Cosine,
        OpCode::ExponentialMinusOne,
        OpCode::Erf,
    ];
    let ops: Vec<&OpDef> = OPS
        .iter()
        .filter(|def| def.fusibility == Fusibility::Elementwise && common.contains(&def.code))
        .collect();
    assert_eq!(ops.len(), common.len());
    let Some(exact) = engine(Numerics::Exact) else { return };
    with_mode(Mode::Strict, || {
        for dtype in [DType::F32, DType::F64, DType::BF16] {
            assert_eq!(found(&exact, &ops, dtype), []);
        }
        // The comparison can fail: `exponential` depends on it with API 0.81, `erf` with others.
        let fast = found(&engine(Numerics::Fast).expect("as before"), &ops[..], DType::F32);
        let is_expected = |op: &OpCode| [OpCode::Exponential, OpCode::Erf].contains(op);
        assert!(fast.iter().any(is_expected), "{fast:?}");
    });
}
