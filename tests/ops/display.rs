//! Printing of tensors.

use fuseline::{Complex, DType, Engine, Fault, FaultPoint, Result, Tensor};

use crate::support::{self, on_all_tiers};

fn numbers(engine: &Engine, dims: &[usize]) -> Result<Tensor> {
    let count = dims.iter().product::<usize>() as i32;
    engine.tensor(&(0..count).collect::<Vec<i32>>(), dims)
}

#[test]
fn a_scalar_is_printed_as_its_element() -> Result<()> {
    let engine = Engine::reference();
    assert_eq!(engine.scalar(0.1f32).to_string(), "0.1");
    assert_eq!(engine.tensor(&[2.0f64], &[])?.to_string(), "2.0");
    assert_eq!(engine.scalar(-7i8).to_string(), "-7");
    assert_eq!(engine.scalar(true).to_string(), "true");
    assert_eq!(format!("{:>8.3}|{:.1}", engine.scalar(2.0f32 / 3.0), engine.scalar(0.25f64)), "   0.667|0.2");
    Ok(())
}

#[test]
fn rows_are_lines_and_elements_stand_below_each_other() {
    on_all_tiers(support::config, |engine| {
        let x = engine.tensor(&[0.5f32, -1.0, 20.25, 3.0], &[2, 2])?;
        assert_eq!((&x * &x)?.to_string(), "[[    0.25,      1.0],\n [410.0625,      9.0]]");
        assert_eq!(format!("{x:.1}"), "[[ 0.5, -1.0],\n [20.2,  3.0]]");
        assert_eq!(format!("{x:6.1}"), "[[   0.5,   -1.0],\n [  20.2,    3.0]]");
        Ok(())
    });
}

#[test]
fn dimensions_nest() -> Result<()> {
    let engine = Engine::reference();
    assert_eq!(numbers(&engine, &[3])?.to_string(), "[0, 1, 2]");
    assert_eq!(numbers(&engine, &[3, 1])?.to_string(), "[[0],\n [1],\n [2]]");
    assert_eq!(numbers(&engine, &[2, 2, 2])?.to_string(), "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]");
    assert_eq!(numbers(&engine, &[2, 1, 1, 2])?.to_string(), "[[[[0, 1]]],\n\n\n [[[2, 3]]]]");
    Ok(())
}

#[test]
fn every_element_type_is_printed() -> Result<()> {
    let engine = Engine::reference();
    let shown = |tensor: Result<Tensor>| tensor.unwrap().to_string();
    assert_eq!(shown(engine.tensor(&[true, false], &[2])), "[ true, false]");
    assert_eq!(shown(engine.tensor(&[u64::MAX, 0], &[2])), "[18446744073709551615,                    0]");
    assert_eq!(shown(engine.tensor(&[i64::MIN], &[1])), "[-9223372036854775808]");
    assert_eq!(
        shown(engine.tensor(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0], &[4])),
        "[ NaN,  inf, -inf, -0.0]"
    );
    // The shortest text that is read as the same number.
    assert_eq!(shown(engine.tensor(&[1e-30f32, f32::MAX], &[2])), "[       1e-30, 3.4028235e38]");
    assert_eq!(shown(engine.tensor(&[0.1f64 + 0.2], &[1])), "[0.30000000000000004]");
    let complex = [Complex::new(1.5f32, -2.0), Complex::new(0.0, 1.0)];
    assert_eq!(shown(engine.tensor(&complex, &[2])), "[1.5-2.0i, 0.0+1.0i]");
    for dtype in DType::ALL {
        let one = engine.tensor(&[1.0f32], &[1])?.convert(dtype)?;
        let expected = match dtype {
            DType::Bool => "[true]",
            // The largest signed number of two bits is 1.
            _ if dtype.is_complex() => "[1.0+0.0i]",
            _ if dtype.is_float() => "[1.0]",
            _ => "[1]",
        };
        assert_eq!(one.to_string(), expected, "{dtype}");
    }
    Ok(())
}

#[test]
fn large_tensors_show_their_ends() -> Result<()> {
    let engine = Engine::reference();
    assert_eq!(numbers(&engine, &[1001])?.to_string(), "[   0,    1,    2, ...,  998,  999, 1000]");
    assert_eq!(
        numbers(&engine, &[40, 30])?.to_string(),
        "[[   0,    1,    2, ...,   27,   28,   29],\n \
          [  30,   31,   32, ...,   57,   58,   59],\n \
          [  60,   61,   62, ...,   87,   88,   89],\n \
          ...,\n \
          [1110, 1111, 1112, ..., 1137, 1138, 1139],\n \
          [1140, 1141, 1142, ..., 1167, 1168, 1169],\n \
          [1170, 1171, 1172, ..., 1197, 1198, 1199]]"
    );
    // A dimension of six is printed in full; the width is that of the printed elements.
    let text = numbers(&engine, &[6, 1000])?.to_string();
    assert_eq!(text.lines().count(), 6);
    assert!(text.starts_with("[[   0,    1,    2, ...,  997,  998,  999],\n"), "{text}");
    // A thousand elements are printed, and more on request.
    assert!(!numbers(&engine, &[1000])?.to_string().contains("..."));
    let all = format!("{:#}", numbers(&engine, &[40, 30])?);
    assert!(!all.contains("..."));
    let read: Vec<i32> = all
        .split(|c: char| !c.is_ascii_digit())
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(read, (0..1200).collect::<Vec<i32>>());
    // Each dimension shows two elements.
    let deep = numbers(&engine, &[3, 3, 3, 3, 3, 3, 3])?.to_string();
    assert_eq!(deep.matches("...").count(), (0..7).map(|axis| 1 << axis).sum::<usize>());
    Ok(())
}

#[test]
fn long_rows_are_wrapped() -> Result<()> {
    let engine = Engine::reference();
    let text = numbers(&engine, &[2, 200])?.to_string();
    assert!(text.lines().all(|line| line.len() <= 80), "{text}");
    assert!(text.starts_with("[[  0,   1,   2,"), "{text}");
    assert!(text.lines().nth(1).unwrap().starts_with("   "), "{text}");
    let rows: Vec<String> = (0..2)
        .map(|row| (row * 200..row * 200 + 200).map(|i: i32| i.to_string()).collect::<Vec<_>>().join(","))
        .collect();
    assert_eq!(text.replace([' ', '\n'], ""), format!("[[{}],[{}]]", rows[0], rows[1]));
    Ok(())
}

#[test]
fn empty_tensors_show_their_shape() -> Result<()> {
    let engine = Engine::reference();
    assert_eq!(engine.tensor::<f32>(&[], &[0])?.to_string(), "[]");
    assert_eq!(engine.tensor::<f32>(&[], &[2, 0, 3])?.to_string(), "[] of shape [2, 0, 3]");
    assert_eq!(engine.tensor::<f32>(&[], &[1 << 40, 0])?.to_string(), "[] of shape [1099511627776, 0]");
    Ok(())
}

#[test]
fn display_computes_the_value_and_debug_does_not() -> Result<()> {
    let engine = support::config().build_reference()?;
    let x = engine.tensor(&[1.0f32, 2.0], &[2])?;
    let y = (&x + &x)?;
    assert_eq!(format!("{y:?}"), format!("Tensor({}: f32[2] on {})", y.id(), engine.stream().id()));
    assert!(!y.is_resolved(), "debugging a value computes it");
    assert_eq!(y.to_string(), "[2.0, 4.0]");
    assert!(y.is_resolved());
    Ok(())
}

#[test]
fn an_error_is_printed_as_the_error() -> Result<()> {
    let config = support::config().inject_faults(|point| match point {
        FaultPoint::Execute { .. } => Some(Fault::new("the device is on fire")),
        _ => None,
    });
    let engine = config.build_reference()?;
    let y = engine.tensor(&[1.0f32], &[1])?.tanh()?;
    let error = y.to_vec::<f32>().unwrap_err().to_string();
    assert!(error.contains("the device is on fire"), "{error}");
    // The error ignores the format.
    assert_eq!((y.to_string(), format!("{y:#9.3}")), (error.clone(), error));
    Ok(())
}

/// A placeholder has no data, and prints the error of a read.
#[test]
fn a_placeholder_prints_what_reading_it_says() -> Result<()> {
    let engine = Engine::reference();
    let mut said = String::new();
    engine.stream().for_range(0..2, engine.scalar(1.0f32), |_, x| {
        said = x.to_string();
        Ok(x.clone())
    })?;
    assert!(said.contains("host read"), "{said}");
    Ok(())
}
