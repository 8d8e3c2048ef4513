//! Operators on results of operators: values, errors and call sites.

use fuseline::{DType, Engine, Result, Site, Tensor};

use crate::support::{self, on_all_tiers, refused};

#[test]
fn an_expression_needs_one_question_mark() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[0.0f32, 1.0, 2.0, 3.0], &[4])?;
        let target = engine.tensor(&[1.0f32, 3.0, 5.0, 7.0], &[4])?;
        let (slope, offset) = (engine.tensor(&[3.0f32], &[])?, engine.tensor(&[0.5f32], &[])?);
        let error = (&x * &slope + &offset - &target)?;
        assert_eq!(error.to_vec::<f32>()?, [-0.5, 0.5, 1.5, 2.5]);
        Ok(())
    });
}

/// Each way to write an operand, for an operator that is not commutative.
#[test]
fn a_result_stands_on_either_side() -> Result<()> {
    let engine = Engine::reference();
    let [a, b, c] = [7i32, 2, 10].map(|number| engine.tensor(&[number, -number], &[2]).unwrap());
    let of = |tensor: Result<Tensor>| tensor.unwrap().to_vec::<i32>().unwrap();
    let product = || &a * &b;
    assert_eq!(of(product() - &c), [4, -8 + 32]);
    assert_eq!(of(product() - c.clone()), [4, 24]);
    assert_eq!(of(&c - product()), [-4, -24]);
    assert_eq!(of(c.clone() - product()), [-4, -24]);
    // The workarounds for two results, and for a result beside a number.
    assert_eq!(of(product() + (&b * &c)?), [34, 34]);
    assert_eq!(of(product()? * 3), [42, 42]);
    assert_eq!(of(3 * &a * &b), [42, 42]);
    assert_eq!(of(product() * engine.scalar(3i32)), [42, 42]);
    Ok(())
}

#[test]
fn every_operator_takes_results() -> Result<()> {
    let engine = Engine::reference();
    let (a, b) = (engine.tensor(&[13i32, 6], &[2])?, engine.tensor(&[4i32, 3], &[2])?);
    let same = |tensor: &Tensor| Ok(tensor.clone());
    let of = |tensor: Result<Tensor>| tensor.unwrap().to_vec::<i32>().unwrap();
    assert_eq!((of(same(&a) + &b), of(&a + same(&b))), (vec![17, 9], vec![17, 9]));
    assert_eq!((of(same(&a) - &b), of(&a - same(&b))), (vec![9, 3], vec![9, 3]));
    assert_eq!((of(same(&a) * &b), of(&a * same(&b))), (vec![52, 18], vec![52, 18]));
    assert_eq!((of(same(&a) / &b), of(&a / same(&b))), (vec![3, 2], vec![3, 2]));
    assert_eq!((of(same(&a) % &b), of(&a % same(&b))), (vec![1, 0], vec![1, 0]));
    assert_eq!((of(same(&a) & &b), of(&a & same(&b))), (vec![4, 2], vec![4, 2]));
    assert_eq!((of(same(&a) | &b), of(&a | same(&b))), (vec![13, 7], vec![13, 7]));
    assert_eq!((of(same(&a) ^ &b), of(&a ^ same(&b))), (vec![9, 5], vec![9, 5]));
    Ok(())
}

/// The file and line of an error's call site.
fn line_of(result: Result<Tensor>, words: &str) -> u32 {
    let error = result.expect_err("the shapes do not fit");
    assert!(error.to_string().contains(words), "{error}");
    match error.site() {
        Some(Site::Rust(location)) => {
            assert_eq!(location.file(), file!());
            location.line()
        }
        other => panic!("{other:?} is no place in a program"),
    }
}

#[test]
fn errors_name_the_line_of_the_operator_that_failed() -> Result<()> {
    let engine = Engine::reference();
    let (two, three) = (engine.tensor(&[1.0f32, 2.0], &[2])?, engine.tensor(&[1.0f32; 3], &[3])?);

    // The second operator fails, with a result on its left or on its right.
    let (left, at) = (&two * &two + &three, line!());
    assert_eq!(line_of(left, "add: lhs is f32[2], rhs is f32[3]"), at);
    let (right, at) = (&three - &two * &two, line!());
    assert_eq!(line_of(right, "subtract: lhs is f32[3], rhs is f32[2]"), at);

    // The first one fails, and later operators pass its error on unchanged.
    let (first, at) = (&two + &three, line!());
    let first = first * &two;
    assert_eq!(line_of(&two - first, "add: lhs is f32[2], rhs is f32[3]"), at);
    let (first, at) = (&two + &three, line!());
    let first = first * two.clone();
    assert_eq!(line_of(two.clone() / first, "add"), at);
    Ok(())
}

/// The call site of an op recorded by an operator on a result is the line of the operator, also if
/// the op fails later.
#[test]
fn recorded_ops_carry_the_line_of_the_operator() -> Result<()> {
    let log = support::Log::default();
    let engine = support::config().event_sink(log.sink()).build_reference()?;
    let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
    let (y, at) = (&x * &x + &x, line!());
    y?.wait()?;
    let lines: Vec<u32> = log
        .take()
        .into_iter()
        .filter_map(|event| match event {
            fuseline::Event::Sealed { contents, .. } => Some(contents),
            _ => None,
        })
        .flat_map(|contents| contents.sites().to_vec())
        .map(|site| match site {
            Site::Rust(location) => {
                assert_eq!(location.file(), file!());
                location.line()
            }
            other => panic!("{other:?} is no place in a program"),
        })
        .collect();
    assert_eq!(lines, [at, at]);
    Ok(())
}

#[test]
fn scalars_of_rank_0_broadcast_and_promote() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
        // Data on the device, a lifted scalar, and one of another type.
        for scalar in [engine.tensor(&[2.0f32], &[])?, engine.scalar(2.0f32), engine.scalar(2i8)] {
            let (product, difference) = ((&x * &scalar)?, (&scalar - &x)?);
            assert_eq!((product.dims(), product.dtype()), (x.dims(), DType::F32));
            assert_eq!(product.to_vec::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
            assert_eq!(difference.to_vec::<f32>()?, [1.0, 0.0, -1.0, -2.0]);
        }
        // A scalar is not a vector of two: the shapes decide what broadcasts.
        refused(&x * &engine.tensor(&[1.0f32; 3], &[3])?, "do not broadcast");
        Ok(())
    });
}

/// Operands of equal shapes are recorded unchanged: one op, however they are written.
#[test]
fn operands_that_are_alike_cost_one_op() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
    let before = engine.counters();
    (&x * &x + &x - &x)?.wait()?;
    engine.synchronize()?;
    assert_eq!(engine.counters().since(&before).ops, 3);
    Ok(())
}
