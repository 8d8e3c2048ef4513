//! Promotion against JAX's table, broadcasting against loops that implement NumPy's rule, and the
//! errors where they fail.

use fuseline::promote::{Weak, broadcast_shapes, promote_number, promote_types};
use fuseline::{Attrs, Complex, DType, Engine, Literal, OpCode, Result, Shape, Tensor};
use proptest::prelude::*;
use serde_json::Value;

use crate::support::{self, on_all_tiers, refused};

/// JAX's result types for two operands, by StableHLO's names; written by
/// `data/generate_promotion.py`.
fn table() -> Value {
    let data: Value = serde_json::from_str(include_str!("../data/promotion.json")).unwrap();
    data["table"].clone()
}

/// The element type of an entry of the table; a family alone is its 32-bit type.
fn entry(value: &Value) -> Option<DType> {
    match value.as_str()? {
        "i*" => Some(DType::I32),
        "f*" => Some(DType::F32),
        "c*" => Some(DType::C64),
        name => {
            let named = DType::ALL.into_iter().find(|dtype| dtype.stablehlo() == name);
            Some(named.unwrap_or_else(|| panic!("no element type is called {name}")))
        }
    }
}

#[test]
fn whole_powers_are_products() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[2.0f32, -3.0, 0.5], &[3])?;
        for exponent in [-3, -1, 0, 1, 2, 3, 7, 10] {
            let wanted = [2.0f32, -3.0, 0.5].map(|x| x.powi(exponent));
            let found = x.powi(exponent)?.to_vec::<f32>()?;
            assert!(
                found.iter().zip(wanted).all(|(a, b)| (a - b).abs() <= 1e-6 * b.abs()),
                "{exponent}: {found:?}"
            );
        }
        let whole = engine.tensor(&[2i32, -3], &[2])?;
        assert_eq!(whole.powi(5)?.to_vec::<i32>()?, [32, -243]);
        assert_eq!(engine.tensor(&[f32::NAN], &[1])?.powi(0)?.to_vec::<f32>()?, [1.0]);
        refused(whole.powi(-1), "exponent -1");
        refused(engine.tensor(&[true], &[1])?.powi(2), "bool");
        let before = engine.counters();
        x.powi(2)?.wait()?;
        engine.synchronize()?;
        assert_eq!(engine.counters().since(&before).ops, 1);
        Ok(())
    });
}

#[test]
fn every_pair_of_types_promotes_as_in_jax() {
    let table = table();
    for lhs in DType::ALL {
        for rhs in DType::ALL {
            // A missing pair is different from one that JAX refuses.
            let expected = table[lhs.stablehlo()]
                .get(rhs.stablehlo())
                .unwrap_or_else(|| panic!("{lhs} with {rhs}: no entry"));
            assert_eq!(promote_types(lhs, rhs), entry(expected), "{lhs} with {rhs}");
        }
        for (weak, name) in [(Weak::Int, "i*"), (Weak::Float, "f*"), (Weak::Complex, "c*")] {
            assert_eq!(promote_number(lhs, weak), entry(&table[lhs.stablehlo()][name]), "{lhs} with {name}");
        }
    }
}

/// Promotion is a join: commutative, idempotent, and never below an operand.
#[test]
fn promotion_is_a_join() {
    for a in DType::ALL {
        assert_eq!(promote_types(a, a), Some(a));
        for b in DType::ALL {
            let joined = promote_types(a, b);
            assert_eq!(joined, promote_types(b, a));
            let Some(joined) = joined else { continue };
            assert_eq!(promote_types(a, joined), Some(joined), "{a} with {b}");
        }
    }
}

#[test]
fn operators_record_in_the_promoted_type() {
    on_all_tiers(support::config, |engine| {
        let tensors: Vec<(Tensor, Tensor)> = DType::ALL
            .into_iter()
            .map(|dtype| Ok((of(engine, dtype, &[1.0, 1.0])?, of(engine, dtype, &[1.0])?)))
            .collect::<Result<_>>()?;
        // All are recorded before the first is read, so that the plugin has few modules to compile.
        let mut recorded = Vec::new();
        // The plugin gets a part: compiling all pairs takes minutes, and the recorded ops are the
        // same.
        let some = [DType::Bool, DType::U8, DType::I32, DType::F32];
        let all = engine.pjrt_device().is_none();
        for (a, _) in &tensors {
            for (_, b) in tensors.iter().filter(|(_, b)| all || some.contains(&b.dtype())) {
                match promote_types(a.dtype(), b.dtype()) {
                    None => drop(refused(a + b, "no common type")),
                    Some(common) => {
                        let sum = (a + b)?;
                        assert_eq!(sum.dtype(), common, "{a:?} with {b:?}");
                        let two = match common {
                            DType::Bool => 1.0,
                            DType::I2 => -2.0,
                            _ => 2.0,
                        };
                        recorded.push((sum.convert(DType::F64)?, two, a.equal(b)?));
                    }
                }
            }
        }
        for (sum, two, equal) in recorded {
            assert_eq!((sum.to_vec::<f64>()?, equal.to_vec::<bool>()?), (vec![two; 2], vec![true; 2]));
        }
        Ok(())
    });
}

/// A tensor of small numbers in the given element type.
fn of(engine: &Engine, dtype: DType, data: &[f64]) -> Result<Tensor> {
    engine.tensor(data, &[data.len()])?.convert(dtype)
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    tensor.convert(DType::F64)?.to_vec()
}

#[test]
fn numbers_take_the_type_of_the_tensor_if_it_holds_them() -> Result<()> {
    let engine = Engine::reference();
    let half = of(&engine, DType::F16, &[1.5])?;
    assert_eq!((&half * 2.0)?.dtype(), DType::F16);
    assert_eq!((&half + 1)?.dtype(), DType::F16);
    let int = of(&engine, DType::I8, &[100.0])?;
    assert_eq!(((&int + 100)?.dtype(), numbers(&(&int + 100)?)?), (DType::I8, vec![-56.0]));
    assert_eq!((1 - &int)?.to_vec::<i8>()?, [-99]);
    assert_eq!((&int & 6)?.to_vec::<i8>()?, [4]);
    // A float beside integers: the family changes, with its 32-bit type.
    assert_eq!((&int * 0.5)?.to_vec::<f32>()?, [50.0]);
    assert_eq!((2.0 / of(&engine, DType::U64, &[8.0])?)?.to_vec::<f32>()?, [0.25]);
    // A complex number needs two lifted scalars; a real one beside complex numbers needs one.
    let turn = (&half * Complex::new(0.0, 2.0))?;
    assert_eq!(turn.to_vec::<Complex<f32>>()?, [Complex::new(0.0, 3.0)]);
    assert_eq!((1.0 - turn)?.to_vec::<Complex<f32>>()?, [Complex::new(1.0, -3.0)]);
    assert_eq!((of(&engine, DType::F64, &[1.0])? * Complex::new(0.0, 1.0))?.dtype(), DType::C128);
    refused(of(&engine, DType::I4, &[1.0])? * 0.5, "have no common type");
    refused(of(&engine, DType::U4, &[1.0])? + 16, "must fit into u4");
    let flag = of(&engine, DType::Bool, &[1.0])?;
    assert_eq!((&flag + 1)?.to_vec::<i32>()?, [2]);
    assert_eq!((&flag * 1.5)?.to_vec::<f32>()?, [1.5]);
    // Integers that the type cannot hold are refused instead of wrapped.
    refused(&int + 128, "must fit into i8");
    refused(of(&engine, DType::U8, &[1.0])? - -1, "must fit into u8");
    assert_eq!((of(&engine, DType::U64, &[1.0])? + i64::MAX)?.to_vec::<u64>()?, [1 << 63]);
    Ok(())
}

/// Another number is another value of the same parameter.
#[test]
fn another_number_compiles_nothing() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.tensor(&[1i32, 2], &[2])?;
    let mut after_first = None;
    for number in [0.5, 2.5, -3.0] {
        assert_eq!((&x * number)?.to_vec::<f32>()?, [number as f32, 2.0 * number as f32]);
        let misses = engine.counters().misses;
        assert_eq!(*after_first.get_or_insert(misses), misses);
    }
    Ok(())
}

#[test]
fn selections_limits_and_concatenations_promote() {
    on_all_tiers(support::config, |engine| {
        let pred = engine.tensor(&[true, false], &[2, 1])?;
        let ints = engine.tensor(&[1i32, 2, 3], &[3])?;
        let float = engine.tensor(&[0.5f32], &[])?;
        let chosen = pred.select(&ints, &float)?;
        assert_eq!(
            (chosen.dims(), chosen.to_vec::<f32>()?),
            (&[2, 3][..], vec![1.0, 2.0, 3.0, 0.5, 0.5, 0.5])
        );
        refused(ints.select(&ints, &float), "pred");

        let low = engine.tensor(&[1.5f32, 2.5], &[2, 1])?;
        let high = engine.tensor(&[2i8], &[])?;
        let limited = ints.clamp(&low, &high)?;
        assert_eq!(
            (limited.dims(), limited.to_vec::<f32>()?),
            (&[2, 3][..], vec![1.5, 2.0, 2.0, 2.0, 2.0, 2.0])
        );
        let one = engine.tensor(&[1i32], &[])?;
        assert_eq!(ints.clamp(&one, &high)?.to_vec::<i32>()?, [1, 2, 2]);
        refused(ints.clamp(&engine.tensor(&[0i32; 2], &[2])?, &high), "do not broadcast");

        let bytes = engine.tensor(&[7u8], &[1])?;
        assert_eq!(Tensor::concatenate(&[&bytes, &ints], 0)?.to_vec::<i32>()?, [7, 1, 2, 3]);
        Ok(())
    });
}

#[test]
fn the_record_layer_is_exact() -> Result<()> {
    let engine = Engine::reference();
    let (a, b) = (engine.tensor(&[1i32, 2], &[2])?, engine.tensor(&[1.0f32, 2.0], &[2])?);
    let stream = a.on_stream();
    refused(stream.record(OpCode::Add, Attrs::none(), &[], &[&a, &b]), "add");
    let row = engine.tensor(&[1i32], &[1])?;
    refused(stream.record(OpCode::Add, Attrs::none(), &[], &[&a, &row]), "add");
    Ok(())
}

// ----- errors -----

#[test]
fn misfits_name_both_shapes_the_dimension_and_the_fix() -> Result<()> {
    let engine = Engine::reference();
    let zeros = |dims: &[usize]| engine.stream().zeros(DType::F32, dims).unwrap();
    let cases: &[(&[usize], &[usize], &[&str])] = &[
        (
            &[2, 3],
            &[3, 2],
            &[
                "lhs is f32[2, 3], rhs is f32[3, 2]",
                "3 and 2 do not broadcast",
                "dimension 1 of lhs and dimension 1 of rhs",
                "transpose rhs?",
            ],
        ),
        (
            &[2, 3],
            &[2],
            &["dimension 1 of lhs and dimension 0 of rhs", "`rhs.unsqueeze(-1)?`, with shape [2, 1]"],
        ),
        (&[5], &[5, 2, 3], &["5 and 3", "`lhs.unsqueeze(-1)?.unsqueeze(-1)?`, with shape [5, 1, 1]"]),
        (&[4, 2], &[7, 2, 4], &["2 and 4", "transpose lhs?"]),
        (&[2], &[3], &["2 and 3", "for all pairs", "`lhs.unsqueeze(-1)?`"]),
        (&[2, 0], &[2, 3], &["0 and 3"]),
        (&[1 << 40, 1], &[1, 1 << 40], &["has more than 2^59 - 1 elements"]),
    ];
    for (lhs, rhs, words) in cases {
        for words in *words {
            refused(zeros(lhs) + zeros(rhs), words);
        }
    }
    refused(zeros(&[2, 3]).equal(&zeros(&[2])), "compare: lhs is f32[2, 3], rhs is f32[2]");
    refused(zeros(&[3, 2]).matmul(&zeros(&[])), "did you mean `mul`?");
    refused(
        zeros(&[2, 3, 4]).matmul(&zeros(&[3, 4, 5])),
        "the batch dimensions [2] and [3] do not broadcast",
    );
    refused(zeros(&[2, 3]).matmul(&zeros(&[2, 3])), "dot_general");
    Ok(())
}

// ----- broadcasting -----

/// NumPy's rule, from its manual: aligned at the last dimension, equal or one of them 1.
fn numpy_rule(shapes: &[Vec<usize>]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(Vec::len).max().unwrap_or(0);
    (0..rank)
        .map(|axis| {
            let sizes: Vec<usize> = shapes
                .iter()
                .map(|dims| (axis + dims.len()).checked_sub(rank).map_or(1, |place| dims[place]))
                .filter(|&size| size != 1)
                .collect();
            match sizes.first() {
                None => Some(1),
                Some(first) => sizes.iter().all(|size| size == first).then_some(*first),
            }
        })
        .collect()
}

/// The element of a broadcast tensor at an index of the result.
fn element(data: &[f64], dims: &[usize], place: &[usize]) -> f64 {
    let own = &place[place.len() - dims.len()..];
    let index =
        dims.iter().zip(own).fold(0, |index, (&dim, &at)| index * dim + if dim == 1 { 0 } else { at });
    data[index]
}

/// All indices of a shape, row-major.
fn places(dims: &[usize]) -> Vec<Vec<usize>> {
    dims.iter().fold(vec![Vec::new()], |places, &dim| {
        places.iter().flat_map(|place| (0..dim).map(move |at| [place.as_slice(), &[at]].concat())).collect()
    })
}

fn count_up(dims: &[usize], factor: f64) -> Vec<f64> {
    (0..dims.iter().product::<usize>()).map(|i| (i as f64 + 1.0) * factor).collect()
}

fn any_shape() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop::sample::select(vec![0usize, 1, 1, 2, 2, 3]), 0..=4)
}

/// Two shapes that broadcast: one, and the same with dimensions removed or set to 1.
fn fitting_shapes() -> impl Strategy<Value = [Vec<usize>; 2]> {
    let dims = prop::collection::vec(0usize..4, 0..=4);
    (dims, prop::collection::vec(0u8..3, 8), 0usize..=4, any::<bool>()).prop_map(
        |(dims, ones, drop, swap)| {
            let thin = |from: usize| -> Vec<usize> {
                dims.iter().zip(&ones[from..]).map(|(&dim, &one)| if one == 0 { 1 } else { dim }).collect()
            };
            let (a, b) = (thin(0), thin(4));
            let b = b[drop.min(b.len())..].to_vec();
            if swap { [b, a] } else { [a, b] }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn shapes_broadcast_by_numpys_rule(shapes in prop::collection::vec(any_shape(), 0..=3)) {
        let shape = |dims: &Vec<usize>| Shape::try_from(dims.as_slice()).unwrap();
        let typed: Vec<Shape> = shapes.iter().map(shape).collect();
        let found = broadcast_shapes(&typed.iter().collect::<Vec<_>>());
        prop_assert_eq!(found, numpy_rule(&shapes).as_ref().map(shape));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn elements_repeat_by_numpys_rule([a, b] in fitting_shapes()) {
        let engine = Engine::reference();
        let (x, y) = (count_up(&a, 1.0), count_up(&b, 100.0));
        let common = numpy_rule(&[a.clone(), b.clone()]).unwrap();
        let sum = (engine.tensor(&x, &a).unwrap() + engine.tensor(&y, &b).unwrap()).unwrap();
        prop_assert_eq!(sum.dims(), &common[..]);
        let expected: Vec<f64> =
            places(&common).iter().map(|place| element(&x, &a, place) + element(&y, &b, place)).collect();
        prop_assert_eq!(sum.to_vec::<f64>().unwrap(), expected);
    }

    #[test]
    fn batches_of_matrices_broadcast(
        [a, b] in fitting_shapes(),
        (m, k, n) in (0usize..3, 0usize..4, 0usize..3),
        (left, right) in (any::<bool>(), any::<bool>()),
    ) {
        let engine = Engine::reference();
        // A vector has no batch.
        let vector = |is: bool, batch: Vec<usize>, matrix: [usize; 2], inner: usize| {
            if is { (Vec::new(), vec![matrix[inner]]) } else { (batch.clone(), [batch, matrix.to_vec()].concat()) }
        };
        let ((a, lhs), (b, rhs)) = (vector(left, a, [m, k], 1), vector(right, b, [k, n], 0));
        let (x, y) = (count_up(&lhs, 1.0), count_up(&rhs, 0.5));
        let product = engine.tensor(&x, &lhs).unwrap().matmul(&engine.tensor(&y, &rhs).unwrap()).unwrap();
        let batch = numpy_rule(&[a.clone(), b.clone()]).unwrap();
        let (rows, columns) = (if left { vec![] } else { vec![m] }, if right { vec![] } else { vec![n] });
        let dims = [batch.clone(), rows.clone(), columns.clone()].concat();
        prop_assert_eq!(product.dims(), &dims[..]);
        let expected: Vec<f64> = places(&dims)
            .iter()
            .map(|place| {
                let (at, rest) = place.split_at(batch.len());
                let (row, column) = rest.split_at(rows.len());
                (0..k)
                    .map(|i| {
                        let own = |batch: &[usize]| at[at.len() - batch.len()..].to_vec();
                        let l = element(&x, &lhs, &[own(&a), row.to_vec(), vec![i]].concat());
                        let r = element(&y, &rhs, &[own(&b), vec![i], column.to_vec()].concat());
                        l * r
                    })
                    .sum()
            })
            .collect();
        prop_assert_eq!(product.to_vec::<f64>().unwrap(), expected);
    }
}

/// The same on the plugin, for shapes that cover each way through the product, with element types
/// that promote.
#[test]
fn matrix_products_agree_on_both_devices() {
    on_all_tiers(support::config, |engine| {
        let ones = |dtype: DType, dims: &[usize]| {
            let one = Literal::from_slice(&[], &[1.0f64])?;
            engine.stream().splat(one, dims)?.convert(dtype)
        };
        let cases: &[(&[usize], &[usize], &[usize])] = &[
            (&[2, 3, 4], &[4, 5], &[2, 3, 5]),
            (&[3, 4], &[2, 4, 5], &[2, 3, 5]),
            (&[2, 1, 3, 4], &[6, 4, 5], &[2, 6, 3, 5]),
            (&[1, 3, 4], &[1, 4, 5], &[1, 3, 5]),
            (&[4], &[2, 4, 5], &[2, 5]),
            (&[2, 3, 4], &[4], &[2, 3]),
            (&[4], &[4], &[]),
        ];
        for (lhs, rhs, dims) in cases {
            let product = ones(DType::I16, lhs)?.matmul(&ones(DType::F32, rhs)?)?;
            assert_eq!((product.dims(), product.dtype()), (*dims, DType::F32));
            assert!(product.to_vec::<f32>()?.iter().all(|&sum| sum == 4.0), "{lhs:?} by {rhs:?}");
        }
        Ok(())
    });
}
