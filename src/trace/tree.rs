//! Structures made of tensors.

use std::array;

use fuseline_runtime::{Error, Result};

use crate::handle::Tensor;

/// A structure of tensors: the state of a loop, the result of a branch, the operands of a
/// reduction. In JAX this is a pytree.
///
/// A tensor is one; so are arrays, vectors, options and tuples of such structures, nested in any
/// way. Your own type becomes one by implementing how to visit its tensors:
///
/// ```
/// use fuseline::{Engine, Tensor, TensorTree};
///
/// struct Momentum {
///     value: Tensor,
///     velocity: Tensor,
/// }
///
/// impl TensorTree for Momentum {
///     fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Momentum {
///         Momentum { value: f(&self.value), velocity: f(&self.velocity) }
///     }
/// }
///
/// # fn main() -> fuseline::Result<()> {
/// let engine = Engine::reference();
/// let start = Momentum { value: engine.scalar(1.0f32), velocity: engine.scalar(0.0f32) };
/// let end = engine.stream().for_range(0..3, start, |_, state| {
///     let velocity = ((&state.velocity * 0.5)? - &state.value)?;
///     Ok(Momentum { value: (&state.value + &velocity)?, velocity })
/// })?;
/// assert_eq!(end.value.item::<f32>()?, -0.25);
/// # Ok(())
/// # }
/// ```
pub trait TensorTree: Sized {
    /// The same structure with each tensor replaced by the result of `f`. Each tensor is visited
    /// once, in an order that depends on the structure alone.
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Self;

    /// The tensors, in the order of [`TensorTree::map`].
    fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = Vec::new();
        self.map(&mut |tensor| {
            tensors.push(tensor.clone());
            tensor.clone()
        });
        tensors
    }
}

/// The structure of `like` with these tensors.
pub(crate) fn with_tensors<T: TensorTree>(like: &T, tensors: impl IntoIterator<Item = Tensor>) -> Result<T> {
    let mut tensors = tensors.into_iter();
    let mut short = false;
    let made = like.map(&mut |old| {
        tensors.next().unwrap_or_else(|| {
            short = true;
            old.clone()
        })
    });
    match short || tensors.next().is_some() {
        false => Ok(made),
        true => {
            let message = format!(
                "{}: its `map` visits a different number of tensors than before; it must visit each tensor once",
                std::any::type_name::<T>()
            );
            Err(Error::misuse(message, fuseline_fusion::Site::Unknown))
        }
    }
}

impl TensorTree for Tensor {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Tensor {
        f(self)
    }
}

impl<T: TensorTree, const N: usize> TensorTree for [T; N] {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> [T; N] {
        array::from_fn(|index| self[index].map(f))
    }
}

impl<T: TensorTree> TensorTree for Vec<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Vec<T> {
        self.iter().map(|part| part.map(f)).collect()
    }
}

impl<T: TensorTree> TensorTree for Option<T> {
    fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> Option<T> {
        self.as_ref().map(|part| part.map(f))
    }
}

impl TensorTree for () {
    fn map(&self, _: &mut dyn FnMut(&Tensor) -> Tensor) {}
}

macro_rules! tuples {
    ($(($($part:ident . $index:tt),*)),* $(,)?) => {$(
        impl<$($part: TensorTree),*> TensorTree for ($($part,)*) {
            fn map(&self, f: &mut dyn FnMut(&Tensor) -> Tensor) -> ($($part,)*) {
                ($(self.$index.map(f),)*)
            }
        }
    )*};
}

tuples! {
    (A.0),
    (A.0, B.1),
    (A.0, B.1, C.2),
    (A.0, B.1, C.2, D.3),
    (A.0, B.1, C.2, D.3, E.4),
    (A.0, B.1, C.2, D.3, E.4, F.5),
}
