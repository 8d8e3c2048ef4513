//! `einsum` against NumPy on equations that show its rules, and against loops on random ones.

use std::collections::BTreeMap;

use fuseline::{Complex, DType, Engine, Mode, Origin, Result, Stage, Tensor, einsum};
use proptest::prelude::*;
use serde_json::Value;

use crate::support::in_each_mode;
use crate::support::reference::{Case, cases};

fn numpy() -> Vec<Case> {
    cases(include_str!("../data/einsum.json"))
}

fn equation(case: &Case) -> &str {
    case.settings["equation"].as_str().unwrap()
}

#[test]
fn equations_mean_what_they_mean_to_numpy() {
    in_each_mode(|engine, mode| {
        let mut recorded = Vec::new();
        let cases: Vec<Case> = numpy().into_iter().filter(|case| case.name == "einsum").collect();
        assert!(cases.len() > 40);
        // Without fusion every op of every shape is a module for the plugin, so it gets a part of
        // the cases.
        let step = if engine.pjrt_device().is_some() && mode != Mode::Fused { 5 } else { 1 };
        for case in cases.into_iter().step_by(step) {
            let inputs: Vec<Tensor> =
                case.inputs.iter().map(|input| engine.from_literal(input)).collect::<Result<_>>()?;
            let sum = einsum(equation(&case), &inputs.iter().collect::<Vec<_>>())?;
            recorded.push((case, sum));
        }
        for (case, sum) in recorded {
            assert_eq!(case.difference(&sum.to_literal()?, &case.outputs[0], 0.0), None);
        }
        Ok(())
    });
}

#[test]
fn what_numpy_refuses_is_refused() -> Result<()> {
    let engine = Engine::reference();
    let refused: Vec<Case> = numpy().into_iter().filter(|case| case.name == "refused").collect();
    assert!(refused.len() > 10);
    for case in refused {
        let inputs: Vec<Tensor> =
            case.inputs.iter().map(|input| engine.from_literal(input)).collect::<Result<_>>()?;
        let Err(error) = einsum(equation(&case), &inputs.iter().collect::<Vec<_>>()) else {
            panic!("{} was taken", equation(&case));
        };
        assert_eq!((error.stage(), error.origin()), (Stage::Record, Origin::User), "{error}");
        assert!(error.to_string().contains("tests/ops/einsum.rs"), "{error}");
    }
    Ok(())
}

#[test]
fn errors_name_the_operand_and_the_rule() -> Result<()> {
    let engine = Engine::reference();
    let zeros = |dims: &[usize]| engine.stream().zeros(DType::F32, dims).unwrap();
    let (a, b) = (zeros(&[2, 3]), zeros(&[4, 5]));
    let cases = [
        (
            einsum("ij,jk", &[&a, &b]),
            "`j` has size 3 before operand 1 and size 4 in it; the operands are f32[2, 3], f32[4, 5]",
        ),
        (einsum("ijk", &[&a]), "operand 0 of \"ijk\" is f32[2, 3]; it must have 3 dimensions"),
        (einsum("ij,jk", &[&a]), "there are 1 operands; it describes 2"),
        (einsum("ij->ik", &[&a]), "has `k` in the result and in no operand"),
        (einsum("i_", &[&a]), "contains '_'"),
        (einsum("ii", &[&a]), "operand 0 is f32[2, 3], and `i` labels its dimensions 0 and 1"),
        (einsum("...->", &[&a]), "`...` stands for 2 dimensions"),
        (einsum("...,...", &[&a, &b]), "dimension -2 of `...` has size 2 before operand 1 and size 4 in it"),
    ];
    for (result, words) in cases {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(words), "{words:?} is not in: {text}");
    }
    Ok(())
}

#[test]
fn element_types_promote() -> Result<()> {
    let engine = Engine::reference();
    let (ints, halves) = (engine.tensor(&[1i32, 2], &[2])?, engine.tensor(&[0.5f32, 0.25], &[2])?);
    assert_eq!(einsum("i,i", &[&ints, &halves])?.item::<f32>()?, 1.0);
    assert_eq!(einsum("i,i", &[&ints, &ints])?.item::<i32>()?, 5);
    let turn = engine.tensor(&[Complex::new(0.0f32, 1.0), Complex::new(2.0, 0.0)], &[2])?;
    assert_eq!(
        einsum("i,i->i", &[&turn, &halves])?.to_vec::<Complex<f32>>()?,
        [Complex::new(0.0, 0.5), Complex::new(0.5, 0.0)]
    );
    Ok(())
}

/// An equation that is a single op records as few ops as possible.
#[test]
fn equations_that_are_one_op_record_one() -> Result<()> {
    let engine = Engine::reference();
    let ops = |equation: &str, shapes: &[&[usize]]| -> Result<u64> {
        let inputs: Vec<Tensor> = shapes
            .iter()
            .map(|dims| engine.tensor(&vec![0.0f32; dims.iter().product()], dims))
            .collect::<Result<_>>()?;
        let before = engine.counters().ops;
        let sum = einsum(equation, &inputs.iter().collect::<Vec<_>>())?;
        sum.wait()?;
        Ok(engine.counters().ops - before)
    };
    let square: &[usize] = &[3, 3];
    assert_eq!(ops("ij,jk->ik", &[square, square])?, 1);
    // Swapping the factors avoids a transpose.
    assert_eq!(ops("ij,jk->ki", &[square, square])?, 1);
    assert_eq!(ops("bij,bjk->bik", &[&[2, 3, 3], &[2, 3, 3]])?, 1);
    assert_eq!(ops("ij,ij->ij", &[square, square])?, 1);
    assert_eq!(ops("ij->ji", &[square])?, 1);
    assert_eq!(ops("ij,jk,kl->il", &[square, square, square])?, 2);
    Ok(())
}

// ----- random equations -----

#[derive(Clone, Debug)]
struct Random {
    /// The letters of each operand, and whether two unnamed dimensions follow its first letter.
    operands: Vec<(Vec<usize>, bool)>,
    /// The letters of the result, in some order; letters that do not occur are ignored.
    result: Vec<usize>,
    sizes: [usize; 4],
}

const LETTERS: [char; 4] = ['a', 'B', 'c', 'd'];

fn random() -> impl Strategy<Value = Random> {
    let operand = (prop::collection::vec(0usize..4, 0..=3), any::<bool>());
    let order = Just((0..4usize).collect::<Vec<_>>()).prop_shuffle();
    (prop::collection::vec(operand, 1..=4), order, 0usize..=4, prop::array::uniform4(0usize..4)).prop_map(
        |(operands, mut result, keep, sizes)| {
            result.truncate(keep);
            // Mostly without empty dimensions, because then all results would be zeros.
            let sizes = sizes.map(|size| if size == 0 && keep % 2 == 0 { 2 } else { size });
            result.retain(|letter| operands.iter().any(|(letters, _)| letters.contains(letter)));
            Random { operands, result, sizes }
        },
    )
}

const UNNAMED: [usize; 2] = [2, 1];

impl Random {
    fn equation(&self) -> String {
        let operand = |(letters, unnamed): &(Vec<usize>, bool)| {
            let mut text: String = letters.iter().map(|&letter| LETTERS[letter]).collect();
            if *unnamed {
                text.insert_str(text.len().min(1), "...");
            }
            text
        };
        let operands: Vec<String> = self.operands.iter().map(operand).collect();
        format!("{}->{}", operands.join(","), operand(&(self.result.clone(), self.unnamed())))
    }

    fn unnamed(&self) -> bool {
        self.operands.iter().any(|(_, unnamed)| *unnamed)
    }

    /// Numbers of the dimensions of an operand or the result: letters are 0 to 3, unnamed
    /// dimensions 4 and 5.
    fn dims(letters: &[usize], unnamed: bool) -> Vec<usize> {
        let (first, rest) = letters.split_at(letters.len().min(1));
        if unnamed { [first, &[4, 5], rest].concat() } else { letters.to_vec() }
    }

    fn size(&self, index: usize) -> usize {
        if index < 4 { self.sizes[index] } else { UNNAMED[index - 4] }
    }
}

/// The sum, computed by loops over all indices.
fn by_loops(equation: &Random, data: &[Vec<f64>]) -> Vec<f64> {
    let result = Random::dims(&equation.result, equation.unnamed());
    let mut used: Vec<usize> = result.clone();
    for (letters, unnamed) in &equation.operands {
        used.extend(Random::dims(letters, *unnamed));
    }
    used.sort_unstable();
    used.dedup();
    let index = |dims: &[usize], at: &BTreeMap<usize, usize>| {
        dims.iter().fold(0, |index, dim| index * equation.size(*dim) + at[dim])
    };
    let mut sums = vec![0.0; result.iter().map(|&dim| equation.size(dim)).product::<usize>()];
    let total: usize = used.iter().map(|&dim| equation.size(dim)).product();
    for mut flat in 0..total {
        let mut at = BTreeMap::new();
        for &dim in used.iter().rev() {
            at.insert(dim, flat % equation.size(dim));
            flat /= equation.size(dim);
        }
        let factors = equation.operands.iter().zip(data);
        sums[index(&result, &at)] += factors
            .map(|((letters, unnamed), data)| data[index(&Random::dims(letters, *unnamed), &at)])
            .product::<f64>();
    }
    sums
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(384))]

    #[test]
    fn random_equations_are_their_sums(equation in random(), seed in any::<u32>()) {
        let engine = Engine::reference();
        let mut next = u64::from(seed);
        let mut data = Vec::new();
        let mut inputs = Vec::new();
        for (letters, unnamed) in &equation.operands {
            let dims: Vec<usize> =
                Random::dims(letters, *unnamed).into_iter().map(|dim| equation.size(dim)).collect();
            let elements: Vec<f64> = (0..dims.iter().product::<usize>())
                .map(|_| {
                    next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    // Small integers, so that every order of summation has the same result.
                    ((next >> 33) % 7) as f64 - 3.0
                })
                .collect();
            inputs.push(engine.tensor(&elements, &dims).unwrap());
            data.push(elements);
        }
        let sum = einsum(&equation.equation(), &inputs.iter().collect::<Vec<_>>()).unwrap();
        let dims: Vec<usize> =
            Random::dims(&equation.result, equation.unnamed()).into_iter().map(|dim| equation.size(dim)).collect();
        prop_assert_eq!(sum.dims(), &dims[..]);
        prop_assert_eq!(sum.to_vec::<f64>().unwrap(), by_loops(&equation, &data), "{}", equation.equation());
    }
}

/// No equation makes it panic.
#[test]
fn hostile_equations_are_refused_or_computed() {
    let engine = Engine::reference();
    let x = engine.tensor(&[1.0f32; 8], &[2, 2, 2]).unwrap();
    let letters = ["a", "b", "...", ",", "->", " ", ".", "-", "é", "Z"];
    for i in 0..10_000usize {
        let text: String = (0..4).map(|place| letters[i / 10usize.pow(place) % 10]).collect();
        let _: Value = match einsum(&text, &[&x]) {
            Ok(sum) => sum.rank().into(),
            Err(error) => error.to_string().into(),
        };
    }
}
