//! Random programs: of all ops in the table on small operands, and of common ops on larger ones.

use std::collections::HashMap;

use fuseline::fusion::DTypeSet;
use fuseline::fusion::op::{Fusibility, OPS, OpDef, Operands};
use fuseline::fusion::program::ProgramId;
use fuseline::nn::{gelu, softmax};
use fuseline::{Attrs, DType, Engine, Literal, Mode, Numerics, Result, Stage, Tensor, with_mode};
use fuseline_testgen::{Aim, Entropy, ProgramOptions, ProgramSampler, Sampled, Seeded};

use super::{different, engine, programs, uniform};

/// The values that a program reads, each with a description.
type Read = Vec<(String, Literal)>;

/// Records a sampled program and reads what it has not dropped. Operands are uploads and constants.
fn sampled(engine: &Engine, sampled: &Sampled) -> Result<Read> {
    let stream = engine.stream();
    let mut values: HashMap<ProgramId, Tensor> = HashMap::new();
    let ops = &sampled.program.ops;
    let mut how = Seeded::new(ops.len() as u64);
    for op in ops {
        for id in &op.operands {
            if !values.contains_key(id) {
                let data = &sampled.value(*id).data;
                let tensor = match how.draw(4) {
                    0 => stream.constant(Literal::clone(data))?,
                    _ => stream.from_literal(data)?,
                };
                values.insert(*id, tensor);
            }
        }
        let operands: Vec<&Tensor> = op.operands.iter().map(|id| &values[id]).collect();
        let signature = &op.signature;
        let made =
            stream.record(signature.op(), Attrs::clone(signature.attrs()), signature.bodies(), &operands)?;
        values.extend(op.results.iter().copied().zip(made));
    }
    let used = |id: &ProgramId| ops.iter().any(|op| op.operands.contains(id));
    let results = || ops.iter().flat_map(|op| op.results.iter().map(move |id| (op, *id)));
    for (_, id) in results() {
        if used(&id) && how.draw(3) != 0 {
            values.remove(&id);
        }
    }
    let left = results().filter(|(_, id)| values.contains_key(id));
    left.map(|(op, id)| Ok((format!("{:?}", op.signature), values[&id].to_literal()?))).collect()
}

/// Elementwise ops without attributes, and some others, over tensors of one shape and type.
fn grid(engine: &Engine, seed: u64, dtype: DType) -> Result<Read> {
    let mut random = Seeded::new(seed);
    let dims = [24 + random.draw(40) as usize, 16 + random.draw(60) as usize];
    let stream = engine.stream();
    let mut values = Vec::new();
    for _ in 0..3 {
        values.push(uniform(engine, &mut random, &dims, dtype)?);
    }
    engine.synchronize()?;
    let elementwise = |def: &&OpDef| {
        def.fusibility == Fusibility::Elementwise
            && def.bodies.is_empty()
            && matches!(def.operands, Operands::Fixed(names) if names.len() <= 3)
    };
    let ops: Vec<&OpDef> = OPS.iter().filter(elementwise).collect();
    let mut names = Vec::new();
    for _ in 0..4 + random.draw(16) {
        let [a, b, c] = [(); 3].map(|()| values[random.draw(values.len() as u32) as usize].clone());
        let (name, made) = match random.draw(20) {
            0 => ("sum", a.sum(&[1])?.expand_dims(&[1])?.broadcast_to(&dims)?),
            1 => ("mean", a.mean(&[0])?.broadcast_to(&dims)?),
            2 => ("max", a.max(&[1])?.expand_dims(&[1])?.broadcast_to(&dims)?),
            3 => ("products of matrices", a.matmul(&b.transpose(&[1, 0])?)?.matmul(&c)?),
            4 => ("a product and a sum", ((&a * &b)? + &c)?),
            5 => ("softmax", softmax(&a, 1)?),
            6 => ("a scalar", (&a * 0.75)?),
            7 => ("gelu", gelu(&a)?),
            8 => ("a product", (&a * &b)?),
            9 => ("a sum", (&a + &b)?),
            _ => {
                let def = ops[random.draw(ops.len() as u32) as usize];
                let Operands::Fixed(operands) = def.operands else { continue };
                let operands = &[&a, &b, &c][..operands.len()];
                match stream.record(def.code, Attrs::none(), &[], operands) {
                    Ok(mut made) if made[0].dtype() == dtype => (def.name, made.remove(0)),
                    // The op does not take this type.
                    _ => continue,
                }
            }
        };
        names.push(name);
        values.push(made);
    }
    values.drain(..3);
    let last = values.len();
    let kept = values.into_iter().zip(names).enumerate();
    let kept: Vec<(Tensor, &str)> =
        kept.filter(|(index, _)| index + 1 == last || random.draw(4) == 0).map(|(_, kept)| kept).collect();
    engine.synchronize()?;
    kept.iter().map(|(tensor, name)| Ok(((*name).to_owned(), tensor.to_literal()?))).collect()
}

/// Runs programs in both modes and returns how many have different bits.
fn differing(
    engine: &Engine,
    programs: std::ops::Range<u64>,
    run: impl Fn(u64) -> Result<Read>,
) -> (usize, usize) {
    let (mut differing, mut compared) = (0, 0);
    for program in programs {
        let results = [Mode::Fused, Mode::Strict].map(|mode| with_mode(mode, || run(program)));
        let [fused, strict] = match results {
            [Ok(fused), Ok(strict)] => [fused, strict],
            [fused, strict] => {
                // If the plugin does not compile an op, it says so in both modes.
                for result in [fused, strict] {
                    let error = result.expect_err("the other mode refuses it");
                    assert_eq!(error.stage(), Stage::Compile, "program {program}: {error}");
                }
                continue;
            }
        };
        assert_eq!(fused.len(), strict.len());
        compared += fused.len();
        let mut pairs = fused.iter().zip(&strict).map(|((name, a), (_, b))| (name, different(a, b)));
        if let Some((name, count)) = pairs.find(|(_, count)| *count > 0) {
            differing += 1;
            println!("program {program}: {count} elements of {name} differ");
        }
        if engine.counters().cached_executables > 1_000 {
            engine.clear_cache();
        }
    }
    (differing, compared)
}

#[test]
fn programs_of_all_ops_are_exact() {
    let Some(engine) = engine(Numerics::Exact) else { return };
    let (differing, compared) = differing(&engine, programs(50), |program| {
        let dtype = if program % 2 == 0 { DType::F32 } else { DType::BF16 };
        let options = ProgramOptions { dtypes: DTypeSet::of(&[dtype]), ..ProgramOptions::new(Aim::Portable) };
        sampled(&engine, &ProgramSampler::sample(options, &mut Seeded::new(program), 20))
    });
    println!("{differing} programs differ; {compared} results compared");
    assert!(differing == 0 && compared > 200);
}

#[test]
fn programs_on_larger_tensors_are_exact() {
    let Some(exact) = engine(Numerics::Exact) else { return };
    let dtype =
        |program: u64| [DType::F32, DType::BF16, DType::F32, DType::F64, DType::F16][(program % 5) as usize];
    let run = |engine: &Engine, programs| {
        differing(engine, programs, |program| grid(engine, program, dtype(program)))
    };
    let (found, compared) = run(&exact, programs(40));
    println!("{found} programs differ; {compared} results compared");
    assert!(found == 0 && compared > 80);
    // The comparison can fail.
    let (found, compared) = run(&engine(Numerics::Fast).expect("as before"), programs(10));
    println!("with fast numerics {found} programs differ; {compared} results compared");
    assert!(found > 0);
}
