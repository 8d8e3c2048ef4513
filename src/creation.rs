//! Methods of [`Engine`] that create tensors: from host data, constants, sequences and random
//! numbers.

use fuseline_fusion::{DType, Element, Literal, RealElement, Scalar};
use fuseline_runtime::Result;

use crate::engine::Engine;
use crate::handle::Tensor;
use crate::random::Generator;

impl Engine {
    /// A tensor of the given sizes, outermost first, from its elements in row-major order. The data
    /// is copied, to every replica.
    ///
    /// # Errors
    /// When the sizes do not fit the number of elements, or the device refuses (out of memory).
    pub fn tensor<T: Element>(&self, data: &[T], dims: &[usize]) -> Result<Tensor> {
        self.stream().tensor(data, dims)
    }

    /// As [`Engine::tensor`], with different elements on each replica: one slice per replica.
    ///
    /// # Errors
    /// As [`Engine::tensor`], and when there are more or fewer slices than replicas.
    pub fn tensor_per_replica<T: Element>(&self, data: &[&[T]], dims: &[usize]) -> Result<Tensor> {
        self.stream().tensor_per_replica(data, dims)
    }

    /// A tensor from host data.
    ///
    /// # Errors
    /// When the device refuses (out of memory).
    pub fn from_literal(&self, data: &Literal) -> Result<Tensor> {
        self.stream().from_literal(data)
    }

    /// A lifted scalar: see [`Stream::scalar`](crate::Stream::scalar).
    #[must_use]
    pub fn scalar<T: RealElement>(&self, value: T) -> Tensor {
        self.stream().lift(Scalar::new(value))
    }

    /// A tensor of the given sizes, all of whose elements are `value`, a lifted scalar.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// assert_eq!(engine.full(2.5f32, &[3])?.to_vec::<f32>()?, [2.5, 2.5, 2.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the sizes do not form a shape.
    #[track_caller]
    pub fn full<T: RealElement>(&self, value: T, dims: &[usize]) -> Result<Tensor> {
        self.stream().full(value, dims)
    }

    /// A tensor of the given sizes, all of whose elements are 0 (`false` for bool), compiled in.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::DType;
    /// assert_eq!(engine.zeros(DType::F32, &[2, 2])?.to_vec::<f32>()?, [0.0; 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the sizes do not form a shape.
    #[track_caller]
    pub fn zeros(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        self.stream().zeros(dtype, dims)
    }

    /// A tensor of the given sizes, all of whose elements are 1 (`true` for bool), compiled in.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::DType;
    /// assert_eq!(engine.ones(DType::I32, &[2, 2])?.to_vec::<i32>()?, [1; 4]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the sizes do not form a shape.
    #[track_caller]
    pub fn ones(&self, dtype: DType, dims: &[usize]) -> Result<Tensor> {
        self.stream().ones(dtype, dims)
    }

    /// A matrix of shape `[size, size]` with ones on the diagonal and zeros elsewhere.
    /// [`linalg::eye`](crate::linalg::eye) also makes rectangular ones.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::DType;
    /// assert_eq!(engine.eye(DType::F32, 2)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the sizes do not form a shape.
    #[track_caller]
    pub fn eye(&self, dtype: DType, size: usize) -> Result<Tensor> {
        crate::linalg::eye(self.stream(), dtype, size, size)
    }

    /// `start`, `start + 1`, ... up to, not including, `end`, of shape `[n]`:
    /// [`Stream::arange`](crate::Stream::arange).
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// assert_eq!(engine.arange(0, 4)?.to_vec::<i32>()?, [0, 1, 2, 3]);
    /// assert_eq!(engine.arange(0.5f32, 3.0)?.to_vec::<f32>()?, [0.5, 1.5, 2.5]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Stream::arange`](crate::Stream::arange).
    #[track_caller]
    pub fn arange<T: RealElement>(&self, start: T, end: T) -> Result<Tensor> {
        self.stream().arange(start, end)
    }

    /// `start`, `start + step`, ... up to, not including, `end`, of shape `[n]`:
    /// [`Stream::arange_step`](crate::Stream::arange_step).
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// assert!(engine.arange_step(6u8, 0, 2)?.to_vec::<u8>()?.is_empty());
    /// assert_eq!(engine.arange_step(6, 0, -2)?.to_vec::<i32>()?, [6, 4, 2]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Stream::arange_step`](crate::Stream::arange_step).
    #[track_caller]
    pub fn arange_step<T: RealElement>(&self, start: T, end: T, step: T) -> Result<Tensor> {
        self.stream().arange_step(start, end, step)
    }

    /// `count` numbers from `start` to `end`, both included, at equal distances, of shape
    /// `[count]`: [`Stream::linspace`](crate::Stream::linspace).
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// assert_eq!(engine.linspace(-1.0f32, 1.0, 3)?.to_vec::<f32>()?, [-1.0, 0.0, 1.0]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Stream::linspace`](crate::Stream::linspace).
    #[track_caller]
    pub fn linspace<T: RealElement>(&self, start: T, end: T, count: usize) -> Result<Tensor> {
        self.stream().linspace(start, end, count)
    }

    /// Normally distributed numbers with mean 0 and variance 1, of the given sizes, made from a
    /// seed: [`Stream::randn`](crate::Stream::randn). The same seed gives the same numbers. For
    /// several tensors, or other distributions, use a [`generator`](Engine::generator).
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::DType;
    /// let (x, y) = (engine.randn(DType::F32, &[8], 1)?, engine.randn(DType::F32, &[8], 2)?);
    /// assert_ne!(x.to_vec::<f32>()?, y.to_vec::<f32>()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Stream::randn`](crate::Stream::randn).
    #[track_caller]
    pub fn randn(&self, dtype: DType, dims: &[usize], seed: u64) -> Result<Tensor> {
        self.stream().randn(dtype, dims, seed)
    }

    /// A generator of random numbers. Its state is a value, and the same seed gives the same
    /// numbers.
    ///
    /// ```
    /// # fn main() -> fuseline::Result<()> {
    /// # let engine = fuseline::Engine::reference();
    /// use fuseline::DType;
    /// let mut generator = engine.generator(42)?;
    /// let weights = generator.normal(DType::F32, &[4, 2])?;
    /// let bias = generator.uniform(DType::F32, &[2], -0.5, 0.5)?;
    /// assert_eq!((weights.dims(), bias.dims()), (&[4, 2][..], &[2][..]));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the device refuses (out of memory).
    pub fn generator(&self, seed: u64) -> Result<Generator> {
        self.stream().generator(seed)
    }
}
