//! Tensors from `ndarray` arrays of any layout, and back.
#![cfg(feature = "ndarray")]

use fuseline::{Element, Engine, Origin, Result};
use half::{bf16, f16};
use ndarray::{Array, Array3, ArrayD, ArrayView, Axis, Dimension, IxDyn, ShapeBuilder, array, s};

/// Round trip: the array comes back in row-major order, with equal elements.
#[track_caller]
fn check<D: Dimension>(view: ArrayView<'_, i32, D>) {
    let engine = Engine::reference();
    let tensor = engine.from_array(view.view()).unwrap();
    assert_eq!(tensor.dims(), view.shape());
    let back = tensor.to_array::<i32>().unwrap();
    assert!(back.is_standard_layout());
    assert_eq!(back, view.to_owned().into_dyn());
}

fn cube() -> Array3<i32> {
    Array::from_iter(0..60).into_shape_with_order((3, 4, 5)).unwrap()
}

#[test]
fn views_of_every_layout() {
    let cube = cube();
    check(cube.view());
    check(cube.view().reversed_axes());
    check(cube.view().permuted_axes([1, 0, 2]));
    check(cube.slice(s![1.., ..;2, ..]));
    check(cube.slice(s![..;-1, ..;-2, 1..4]));
    check(cube.index_axis(Axis(1), 2));
    check(cube.view().into_dyn());
    // Repeated without a copy: a stride of 0.
    check(array![1, 2, 3].broadcast((4, 3)).unwrap());
    // Column-major.
    check(Array::from_shape_vec((2, 3).f(), vec![1, 2, 3, 4, 5, 6]).unwrap().view());
}

#[test]
fn scalars_and_empty_arrays() {
    check(ndarray::arr0(7).view());
    check(ArrayD::from_elem(IxDyn(&[]), 7).view());
    check(Array3::<i32>::zeros((2, 0, 3)).view());
    check(cube().slice(s![.., 4..4, ..]));
}

#[test]
fn every_element_type() -> Result<()> {
    let engine = Engine::reference();
    fn round<T: Element, D: Dimension>(engine: &Engine, array: &Array<T, D>) -> Result<ArrayD<T>> {
        engine.from_array(array.view())?.to_array()
    }
    macro_rules! there_and_back {
        ($($array:expr),* $(,)?) => {$({
            let array = $array;
            assert_eq!(round(&engine, &array)?, array.into_dyn());
        })*};
    }
    there_and_back!(
        array![true, false],
        array![i8::MIN, i8::MAX],
        array![i16::MIN, i16::MAX],
        array![i64::MIN, i64::MAX],
        array![u8::MAX],
        array![u16::MAX],
        array![u32::MAX],
        array![u64::MAX],
        array![f16::MAX, f16::NEG_ZERO],
        array![bf16::MAX, bf16::NEG_ZERO],
        array![f32::MIN_POSITIVE / 2.0, f32::INFINITY],
        array![f64::MIN_POSITIVE / 2.0, f64::INFINITY],
    );
    Ok(())
}

#[test]
fn what_does_not_fit_is_an_error() -> Result<()> {
    let engine = Engine::reference();
    let x = engine.tensor(&[1.0f32], &[1])?;
    assert_eq!(x.to_array::<f64>().expect_err("another element type").origin(), Origin::User);
    // More dimensions than a tensor can have.
    let deep = ArrayD::<f32>::zeros(IxDyn(&[1; 17]));
    assert_eq!(engine.from_array(deep.view()).expect_err("17 dimensions").origin(), Origin::User);
    // No elements, but sizes whose product no array can have.
    let wide = engine.tensor::<f32>(&[], &[0, 1 << 40, 1 << 40]);
    if let Ok(wide) = wide {
        assert_eq!(wide.to_array::<f32>().expect_err("too wide").origin(), Origin::User);
    }
    Ok(())
}
