//! Ops with bodies on every engine: loops, branches, sorts, and ops that call their body per
//! element, with bodies that XLA cannot call and comparators that contradict themselves.
//! `FUSELINE_PROGRAMS` multiplies the number of sampled programs; `FUSELINE_SEED` changes them.

use std::sync::Arc;

use fuseline::fusion::op::{Bodies, Comparison, ComparisonType, OpDef, attrs};
use fuseline::fusion::{Graph, OpErrorKind, Ref};
use fuseline::{Attrs, Body, DType, Engine, Mode, OpCode, Result, Tensor, TensorType, with_mode};
use fuseline_testgen::{Aim, ProgramOptions, ProgramSampler, Seeded};

use crate::support::{self, engines_of_all_tiers, number, on_all_tiers};

/// A body from the types of its parameters and a closure that builds it.
fn body(params: &[TensorType], make: impl FnOnce(&mut Graph, &[Ref]) -> Vec<Ref>) -> Arc<Body> {
    let mut graph = Graph::new();
    let params: Vec<Ref> = params.iter().map(|ty| graph.param(ty.clone())).collect();
    let returns = make(&mut graph, &params);
    Arc::new(Body::new(graph, &returns).unwrap())
}

fn push(graph: &mut Graph, op: OpCode, attrs: Attrs, operands: &[Ref]) -> Ref {
    graph.push(op, attrs, &[], operands).unwrap()[0]
}

fn int(graph: &mut Graph, value: i32) -> Ref {
    let value = attrs::constant(Arc::new(fuseline::Literal::scalar(value)));
    push(graph, OpCode::Constant, value, &[])
}

fn scalar(dtype: DType) -> TensorType {
    TensorType::scalar(dtype)
}

/// A comparator of operand `key` among operands of the given types.
fn comparator(dtypes: &[DType], key: usize, direction: Comparison, order: ComparisonType) -> Arc<Body> {
    let params: Vec<TensorType> = dtypes.iter().flat_map(|&dtype| [scalar(dtype), scalar(dtype)]).collect();
    body(&params, |graph, params| {
        let pair = [params[2 * key], params[2 * key + 1]];
        vec![push(graph, OpCode::Compare, attrs::compare(direction, order), &pair)]
    })
}

fn sort(engine: &Engine, operands: &[&Tensor], stable: bool, comparator: Arc<Body>) -> Result<Vec<Tensor>> {
    Ok(engine.stream().record(OpCode::Sort, attrs::sort(0, stable), &[comparator], operands)?.into_vec())
}

/// Programs over the ops with bodies, on every engine in every mode.
#[test]
fn sampled_programs_agree() {
    fn accepts(def: &OpDef) -> bool {
        !def.bodies.is_empty() || matches!(def.code, OpCode::Constant | OpCode::Add | OpCode::Compare)
    }
    let options = ProgramOptions { accepts, ..ProgramOptions::new(Aim::Portable) };
    // In Strict mode nothing is interpreted.
    const MODES: &[Mode] = &[Mode::Fused, Mode::Strict];
    for (engine, modes) in engines_of_all_tiers(support::config).iter().zip([MODES, MODES, &MODES[..1]]) {
        let mut calls = std::collections::BTreeMap::<&str, usize>::new();
        let first = number::<u64>("FUSELINE_SEED").unwrap_or(0) << 32;
        for seed in first..first + 40 * number("FUSELINE_PROGRAMS").unwrap_or(1) {
            let sampled = ProgramSampler::sample(options, &mut Seeded::new(seed), 6);
            for op in &sampled.program.ops {
                *calls.entry(op.signature.op().name()).or_default() += 1;
            }
            let prepared = engine.prepare(Arc::new(sampled.program.clone())).unwrap();
            for &mode in modes {
                let text =
                    || format!("{engine:?}, seed {seed}, {}:\n{}", mode.name(), sampled.program.to_json());
                let results = with_mode(mode, || prepared.results());
                let results = results.unwrap_or_else(|error| panic!("{error} on {}", text()));
                for (id, found) in sampled.program.outputs.iter().zip(&results) {
                    let checked = sampled.value(*id).check(found);
                    checked.unwrap_or_else(|error| panic!("value {id}: {error} on {}", text()));
                }
            }
        }
        for name in ["while", "if", "case", "sort", "map", "reduce", "reduce_window", "scatter"] {
            assert!(calls.get(name).is_some_and(|&calls| calls >= 5), "{name} is hardly called: {calls:?}");
        }
    }
}

/// A loop whose bound depends on data and may be zero.
#[test]
fn loops_take_as_many_steps_as_the_data_says() {
    on_all_tiers(support::config, |engine| {
        let types = [scalar(DType::I32), scalar(DType::I32), TensorType::of(DType::F32, &[2]).unwrap()];
        let cond = body(&types, |graph, params| {
            let below = attrs::compare_for(Comparison::Lt, DType::I32);
            vec![push(graph, OpCode::Compare, below, &params[..2])]
        });
        let step = body(&types, |graph, params| {
            let one = int(graph, 1);
            let next = push(graph, OpCode::Add, Attrs::none(), &[params[0], one]);
            let twice = push(graph, OpCode::Add, Attrs::none(), &[params[2], params[2]]);
            vec![next, params[1], twice]
        });
        let bodies = [cond, step];
        for (start, end, factor) in [(0, 0, 1.0), (3, -3, 1.0), (0, 1, 2.0), (-2, 3, 32.0)] {
            let x = engine.tensor(&[1.5f32, -1.0], &[2])?;
            let (start, end) = (engine.tensor(&[start], &[])?, engine.tensor(&[end], &[])?);
            let results =
                engine.stream().record(OpCode::While, Attrs::none(), &bodies, &[&start, &end, &x])?;
            assert_eq!(results[2].to_vec::<f32>()?, [1.5 * factor, -factor]);
            assert_eq!(results[1].to_vec::<i32>()?, end.to_vec::<i32>()?);
        }
        Ok(())
    });
}

/// An index without a branch takes the last branch, whether it is known at compile time or not.
#[test]
fn indices_without_a_branch_take_the_last() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[10i32, 20], &[2])?;
        let ty = [x.ty().clone()];
        let branch = |times: usize| {
            body(&ty, |graph, params| {
                let mut sum = params[0];
                for _ in 0..times {
                    sum = push(graph, OpCode::Add, Attrs::none(), &[sum, params[0]]);
                }
                vec![sum, params[0]]
            })
        };
        let bodies = [branch(0), branch(1), branch(2)];
        for (index, factor) in [(0, 1), (1, 2), (2, 3), (3, 3), (-1, 3), (i32::MIN, 3), (i32::MAX, 3)] {
            let literal = fuseline::Literal::scalar(index);
            for index in [
                engine.from_literal(&literal)?,
                engine.stream().constant(literal.clone())?,
                engine.scalar(index),
            ] {
                let results = engine.stream().record(OpCode::Case, Attrs::none(), &bodies, &[&index, &x])?;
                assert_eq!(results[0].to_vec::<i32>()?, [10 * factor, 20 * factor], "{literal:?}");
                assert_eq!(results[1].to_vec::<i32>()?, [10, 20]);
                let results =
                    engine.stream().record(OpCode::Case, Attrs::none(), &bodies[1..2], &[&index, &x])?;
                assert_eq!(results[0].to_vec::<i32>()?, [20, 40]);
            }
        }
        // Branches without captures, and one that returns nothing.
        let seven = |value: i32| body(&[], move |graph, _| vec![int(graph, value)]);
        let nothing = body(&[], |_, _| Vec::new());
        for pred in [true, false] {
            let pred_tensor = engine.tensor(&[pred], &[])?;
            let found =
                engine.stream().record(OpCode::If, Attrs::none(), &[seven(7), seven(8)], &[&pred_tensor])?;
            assert_eq!(found[0].to_vec::<i32>()?, [if pred { 7 } else { 8 }]);
            let bodies = [nothing.clone(), nothing.clone()];
            assert!(engine.stream().record(OpCode::If, Attrs::none(), &bodies, &[&pred_tensor])?.is_empty());
        }
        Ok(())
    });
}

/// The total order gives a position to NaN of either sign, and to both zeros.
#[test]
fn floats_are_sorted_by_the_total_order() {
    on_all_tiers(support::config, |engine| {
        let wanted =
            [-f32::NAN, f32::NEG_INFINITY, -1.0, -1e-45, -0.0, 0.0, 1e-45, 0.5, f32::INFINITY, f32::NAN];
        let mut mixed = wanted;
        mixed.swap(0, 7);
        mixed.swap(1, 9);
        mixed.swap(4, 5);
        let bits = |data: &[f32]| data.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        for stable in [false, true] {
            for direction in [Comparison::Lt, Comparison::Gt] {
                let comparator = comparator(&[DType::F32], 0, direction, ComparisonType::TotalOrder);
                let mut found = sort(engine, &[&engine.tensor(&mixed, &[10])?], stable, comparator)?[0]
                    .to_vec::<f32>()?;
                if direction == Comparison::Gt {
                    found.reverse();
                }
                assert_eq!(bits(&found), bits(&wanted));
            }
        }
        Ok(())
    });
}

/// Equal keys keep their order, and every operand is sorted by the key: floats of two types,
/// `bool`, an empty dimension.
#[test]
fn operands_of_all_types_are_sorted_together() {
    on_all_tiers(support::config, |engine| {
        const COUNT: u32 = 100;
        let keys: Vec<bool> = (0..COUNT).map(|i| (i * i / 3) % 2 == 0).collect();
        let places: Vec<u32> = (0..COUNT).collect();
        let halves: Vec<half::bf16> = places.iter().map(|&i| half::bf16::from_f32(i as f32)).collect();
        let floats: Vec<f32> = places.iter().map(|&i| i as f32).collect();
        let dims = [COUNT as usize];
        let operands = [
            engine.tensor(&halves, &dims)?,
            engine.tensor(&keys, &dims)?,
            engine.tensor(&floats, &dims)?,
            engine.tensor(&places, &dims)?,
        ];
        let dtypes = [DType::BF16, DType::Bool, DType::F32, DType::U32];
        let comparator = comparator(&dtypes, 1, Comparison::Lt, ComparisonType::Unsigned);
        let operands: Vec<&Tensor> = operands.iter().collect();
        let sorted = sort(engine, &operands, true, comparator.clone())?;
        let mut wanted = places.clone();
        wanted.sort_by_key(|&i| keys[i as usize]);
        assert_eq!(sorted[3].to_vec::<u32>()?, wanted);
        assert_eq!(sorted[2].to_vec::<f32>()?, wanted.iter().map(|&i| i as f32).collect::<Vec<_>>());
        let halves: Vec<f32> = sorted[0].to_vec::<half::bf16>()?.into_iter().map(f32::from).collect();
        assert_eq!(halves, wanted.iter().map(|&i| i as f32).collect::<Vec<_>>());
        let none = [
            engine.tensor::<half::bf16>(&[], &[0, 3])?,
            engine.tensor::<bool>(&[], &[0, 3])?,
            engine.tensor::<f32>(&[], &[0, 3])?,
            engine.tensor::<u32>(&[], &[0, 3])?,
        ];
        let none: Vec<&Tensor> = none.iter().collect();
        assert!(sort(engine, &none, false, comparator)?[3].to_vec::<u32>()?.is_empty());
        Ok(())
    });
}

/// A comparator need not be an order. The result is then some permutation of the elements, and the
/// process survives.
#[test]
fn comparators_that_contradict_themselves_give_a_permutation() {
    on_all_tiers(support::config, |engine| {
        let always = {
            let yes = attrs::constant(Arc::new(fuseline::Literal::scalar(true)));
            body(&[scalar(DType::F32), scalar(DType::F32)], |graph, _| {
                vec![push(graph, OpCode::Constant, yes, &[])]
            })
        };
        let by = |direction| comparator(&[DType::F32], 0, direction, ComparisonType::Float);
        let comparators =
            [always, by(Comparison::Le), by(Comparison::Ne), by(Comparison::Eq), by(Comparison::Lt)];
        for count in [17_usize, 100, 1_000] {
            // Many are equal, and some are NaN.
            let data: Vec<f32> =
                (0..count).map(|i| if i % 7 == 3 { f32::NAN } else { (i * i % 5) as f32 }).collect();
            let x = engine.tensor(&data, &[count])?;
            let mut before: Vec<u32> = data.iter().map(|x| x.to_bits()).collect();
            before.sort_unstable();
            for comparator in &comparators {
                for stable in [false, true] {
                    let sorted = sort(engine, &[&x], stable, comparator.clone())?[0].to_vec::<f32>()?;
                    let mut after: Vec<u32> = sorted.iter().map(|x| x.to_bits()).collect();
                    after.sort_unstable();
                    assert_eq!(after, before, "{count} {:?}", comparator.graph());
                }
            }
        }
        Ok(())
    });
}

/// The body of a sum that adds in as many loop steps as the second element says: it is no scalar
/// code.
fn counted_sum() -> Arc<Body> {
    let element = scalar(DType::I32);
    let types = [element.clone(), element.clone()];
    body(&types, |graph, params| {
        let cond = body(&types, |graph, params| {
            let zero = int(graph, 0);
            let above = attrs::compare_for(Comparison::Gt, DType::I32);
            vec![push(graph, OpCode::Compare, above, &[params[1], zero])]
        });
        let step = body(&types, |graph, params| {
            let one = int(graph, 1);
            let more = push(graph, OpCode::Add, Attrs::none(), &[params[0], one]);
            vec![more, push(graph, OpCode::Subtract, Attrs::none(), &[params[1], one])]
        });
        let sum = graph.push(OpCode::While, Attrs::none(), &[cond, step], params).unwrap();
        vec![sum[0]]
    })
}

/// Bodies with a loop inside, on which XLA's CPU backend would abort the process.
#[test]
fn bodies_may_hold_any_op() {
    on_all_tiers(support::config, |engine| {
        let stream = engine.stream();
        let x = engine.tensor(&[1i32, 2, 3, 4, 5, 6], &[2, 3])?;
        let zero = engine.tensor(&[0i32], &[])?;
        let sum = stream.record(OpCode::Reduce, attrs::dimensions(&[1]), &[counted_sum()], &[&x, &zero])?;
        assert_eq!(sum[0].to_vec::<i32>()?, [6, 15]);
        let twice = stream.record(OpCode::Map, attrs::dimensions(&[0, 1]), &[counted_sum()], &[&x, &x])?;
        assert_eq!(twice[0].to_vec::<i32>()?, [2, 4, 6, 8, 10, 12]);
        let element = scalar(DType::I32);
        let by_sum = body(&[element.clone(), element], |graph, params| {
            let zero = int(graph, 0);
            let (left, right) = (params[0], params[1]);
            let run = |graph: &mut Graph, operand: Ref| {
                let sum = counted_sum();
                let both = [zero, operand];
                let Ref::Result(first) = sum.returns()[0] else { unreachable!("it returns what it makes") };
                let node = &sum.graph().nodes()[first as usize];
                graph.push(OpCode::While, Attrs::none(), node.signature().bodies(), &both).unwrap()[0]
            };
            let sums = [run(graph, left), run(graph, right)];
            vec![push(graph, OpCode::Compare, attrs::compare_for(Comparison::Gt, DType::I32), &sums)]
        });
        let y = engine.tensor(&[3i32, -1, 4, 1, -5, 9], &[6])?;
        assert_eq!(sort(engine, &[&y], true, by_sum)?[0].to_vec::<i32>()?, [9, 4, 3, 1, -1, -5]);
        Ok(())
    });
}

/// Two inputs with the same value are still two inputs.
#[test]
fn scatters_keep_equal_inputs_apart() {
    on_all_tiers(support::config, |engine| {
        let stream = engine.stream();
        let x = engine.tensor(&[1i32, 2, 3, 4], &[4])?;
        let indices = engine.tensor(&[0i32, 2, 0], &[3, 1])?;
        let (u, v) = (engine.tensor(&[10i32, 20, 30], &[3])?, engine.tensor(&[7i32, 1, 5], &[3])?);
        let numbers = attrs::IndexDimensionNumbers {
            window: &[],
            collapsed: &[0],
            operand_batching: &[],
            indices_batching: &[],
            index_map: &[0],
            index_vector: 1,
        };
        let attrs = attrs::scatter(numbers, false, false);
        let apart = body(&vec![scalar(DType::I32); 4], |graph, params| {
            let sum = push(graph, OpCode::Add, Attrs::none(), &[params[0], params[2]]);
            vec![sum, push(graph, OpCode::Maximum, Attrs::none(), &[params[1], params[3]])]
        });
        let results = stream.record(OpCode::Scatter, attrs.clone(), &[apart], &[&x, &x, &indices, &u, &v])?;
        assert_eq!(results[0].to_vec::<i32>()?, [41, 2, 23, 4]);
        assert_eq!(results[1].to_vec::<i32>()?, [7, 2, 3, 4]);
        let together = body(&vec![scalar(DType::I32); 4], |graph, params| {
            let sum = push(graph, OpCode::Add, Attrs::none(), &[params[0], params[3]]);
            vec![sum, push(graph, OpCode::Maximum, Attrs::none(), &[params[0], params[1]])]
        });
        let results = stream.record(OpCode::Scatter, attrs, &[together], &[&x, &x, &indices, &u, &v])?;
        assert_eq!(results[0].to_vec::<i32>()?, [13, 2, 4, 4]);
        assert_eq!(results[1].to_vec::<i32>()?, [8, 2, 3, 4]);
        Ok(())
    });
}

/// A refusal names the value, the rule and what to do.
#[test]
fn bodies_that_do_not_fit_are_refused_with_words() {
    let engine = Engine::reference();
    let stream = engine.stream();
    let refused = |result: Result<fuseline::Tensors>, words: &str| {
        let error = result.expect_err("it is refused");
        let error = error.op_error().expect("by the op table");
        assert_eq!((error.to_string().as_str(), error.fault()), (words, OpErrorKind::Body));
    };
    let n = engine.scalar(3i32);
    let x = engine.full(1.0f32, &[3]).unwrap();
    let types = [n.ty().clone(), x.ty().clone()];
    let cond = body(&types, |graph, params| {
        let zero = int(graph, 0);
        vec![push(graph, OpCode::Compare, attrs::compare_for(Comparison::Gt, DType::I32), &[params[0], zero])]
    });
    let narrow = body(&types, |graph, params| {
        let converted = push(graph, OpCode::Convert, attrs::convert(DType::BF16), &[params[1]]);
        vec![params[0], converted]
    });
    refused(
        stream.record(OpCode::While, Attrs::none(), &[cond, narrow.clone()], &[&n, &x]),
        "while: body returns bf16[3] for carried value 1, which is f32[3]; a step returns every \
         carried value in its type; convert it to f32 before returning it",
    );
    let counts = body(&types, |_, params| vec![params[0]]);
    refused(
        stream.record(OpCode::While, Attrs::none(), &[counts, narrow.clone()], &[&n, &x]),
        "while: cond returns [i32[]]; it must return one bool[], which says whether there is \
         another step; compare it with 0",
    );
    let first = body(&types, |_, params| vec![params[1]]);
    let second = body(&types, |graph, params| {
        vec![push(graph, OpCode::Convert, attrs::convert(DType::F32), &[params[0]])]
    });
    refused(
        stream.record(OpCode::Case, Attrs::none(), &[first.clone(), second.clone()], &[&n, &n, &x]),
        "case: branch 1 returns f32[] for result 0 of branch 0, which is f32[3]; all branches must \
         return the same types; broadcast it to [3] before returning it",
    );
    refused(
        stream.record(OpCode::Case, Attrs::none(), &[first, second], &[&n, &x]),
        "case: branch 0 takes 2 values; it must take 1, one per captured operand, whether the \
         branch uses it or not: [f32[3]]; a body can use only its parameters",
    );
    let swapped = [scalar(DType::F32), scalar(DType::I32), scalar(DType::F32), scalar(DType::I32)];
    let swapped = body(&swapped, |graph, params| {
        let below = attrs::compare_for(Comparison::Lt, DType::F32);
        vec![push(graph, OpCode::Compare, below, &[params[0], params[2]])]
    });
    let y = engine.full(1i32, &[3]).unwrap();
    refused(
        stream.record(OpCode::Sort, attrs::sort(0, true), &[swapped], &[&x, &y]),
        "sort: parameter 1 of comparator is i32[], but it corresponds to the right element of \
         inputs 0, which is f32[]; they must have the same type, two elements per operand, left \
         and right of one operand after the other",
    );
    assert_eq!(OpCode::Case.def().bodies.words(), "at least 1 (branch...)");
    assert!(matches!(OpCode::While.def().bodies, Bodies::Fixed([_, _])));
}
