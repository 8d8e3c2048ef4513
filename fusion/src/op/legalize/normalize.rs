//! Legalizes batch normalisation to the ops that define it in the specification.
//!
//! XLA's own expansion computes the variance as the mean of the squares minus the square of the
//! mean, which cancels if the mean is large: for the `f32` numbers 10000 to 10003 it is 0, and the
//! results are infinite. The specification subtracts the mean first and then takes the mean of the
//! squares.
//!
//! Short floats are computed in `f32`, because they may not represent the number of elements per
//! feature.

use std::sync::Arc;

use super::{Builder, Lowered, expanded};
use crate::attr::Attrs;
use crate::dtype::DType;
use crate::error::OpError;
use crate::ir::{Body, OpCode, Ref};
use crate::op::attrs;
use crate::op::def::Call;
use crate::shape::TensorType;

/// `batch_norm_training`, `batch_norm_inference` and `batch_norm_grad`.
pub(in crate::op) fn batch_norm(call: &Call<'_>) -> Lowered {
    expanded(normalized(call))
}

/// A definition under construction.
struct Norm {
    graph: Builder,
    /// Type of the operand, in the element type of the computation.
    whole: TensorType,
    feature: i64,
}

impl Norm {
    fn op<const N: usize>(&mut self, op: OpCode, operands: [Ref; N]) -> Result<Ref, OpError> {
        self.graph.op(op, Attrs::none(), &operands)
    }

    /// Broadcasts one element per feature, or a scalar, to the shape of the operand.
    fn spread(&mut self, value: Ref) -> Result<Ref, OpError> {
        let scalar = self.graph.0.type_of(value).is_none_or(|ty| ty.rank() == 0);
        let along: &[i64] = if scalar { &[] } else { &[self.feature] };
        let attrs = attrs::broadcast_in_dim(self.whole.shape().clone(), along);
        self.graph.op(OpCode::BroadcastInDim, attrs, &[value])
    }

    /// A number in every element of a type.
    fn number(&mut self, value: f64, ty: &TensorType) -> Result<Ref, OpError> {
        self.graph.splat(value, ty.dtype(), ty.shape())
    }

    /// The sum over all elements of each feature.
    fn sum(&mut self, value: Ref) -> Result<Ref, OpError> {
        let scalar = TensorType::scalar(self.whole.dtype());
        let zero = self.number(0.0, &scalar)?;
        let others: Vec<i64> = (0..self.whole.rank() as i64).filter(|&axis| axis != self.feature).collect();
        let add = Arc::new(Body::binary(OpCode::Add, scalar)?);
        Ok(self.graph.0.push(OpCode::Reduce, attrs::dimensions(&others), &[add], &[value, zero])?[0])
    }

    /// The number of elements per feature, in every element of a type.
    fn count(&mut self, ty: &TensorType) -> Result<Ref, OpError> {
        let axis = self.feature as usize;
        let dims = self.whole.dims().iter().enumerate().filter(|&(other, _)| other != axis);
        self.number(dims.map(|(_, &dim)| dim as f64).product(), ty)
    }

    fn mean(&mut self, value: Ref) -> Result<Ref, OpError> {
        let sum = self.sum(value)?;
        let ty = self.graph.0.type_of(sum).expect("bug: a sum without a type").clone();
        let count = self.count(&ty)?;
        self.op(OpCode::Divide, [sum, count])
    }

    /// The operand minus its mean, the variance plus `epsilon`, and the square root of that.
    fn parts(&mut self, [operand, mean, variance]: [Ref; 3], epsilon: f32) -> Result<[Ref; 3], OpError> {
        let whole = self.whole.clone();
        let mean = self.spread(mean)?;
        let centered = self.op(OpCode::Subtract, [operand, mean])?;
        let epsilon = self.number(epsilon.into(), &whole)?;
        let variance = self.spread(variance)?;
        let variance = self.op(OpCode::Add, [variance, epsilon])?;
        Ok([centered, variance, self.op(OpCode::Sqrt, [variance])?])
    }
}

fn normalized(call: &Call<'_>) -> Result<Lowered, OpError> {
    let dtype = call.operand(0).dtype();
    let wide = if dtype.size() < 4 { DType::F32 } else { dtype };
    let epsilon = call.attr().float(0);
    let (mut graph, mut params) = Builder::of(call);
    for param in &mut params {
        *param = graph.convert(*param, dtype, wide)?;
    }
    let whole = call.operand(0).with_dtype(wide);
    let mut norm = Norm { graph, whole, feature: call.attr().int(1) };
    let results = match (call.def.code, params.as_slice()) {
        (OpCode::BatchNormTraining, &[operand, scale, offset]) => {
            let mean = norm.mean(operand)?;
            let far = norm.spread(mean)?;
            let far = norm.op(OpCode::Subtract, [operand, far])?;
            let squares = norm.op(OpCode::Multiply, [far, far])?;
            let variance = norm.mean(squares)?;
            vec![norm.inferred([operand, scale, offset, mean, variance], epsilon)?, mean, variance]
        }
        (OpCode::BatchNormInference, &[operand, scale, offset, mean, variance]) => {
            vec![norm.inferred([operand, scale, offset, mean, variance], epsilon)?]
        }
        (_, &[operand, scale, mean, variance, gradient]) => {
            norm.gradients([operand, scale, mean, variance, gradient], epsilon)?
        }
        _ => unreachable!("bug: {call:?} is not a normalisation"),
    };
    let mut graph = norm.graph;
    let mut narrow = Vec::new();
    for result in results {
        narrow.push(graph.convert(result, wide, dtype)?);
    }
    Ok(graph.returning(&narrow))
}

impl Norm {
    fn inferred(
        &mut self,
        [operand, scale, offset, mean, variance]: [Ref; 5],
        epsilon: f32,
    ) -> Result<Ref, OpError> {
        let [centered, _, deviation] = self.parts([operand, mean, variance], epsilon)?;
        let normal = self.op(OpCode::Divide, [centered, deviation])?;
        let scale = self.spread(scale)?;
        let offset = self.spread(offset)?;
        let scaled = self.op(OpCode::Multiply, [scale, normal])?;
        self.op(OpCode::Add, [scaled, offset])
    }

    fn gradients(
        &mut self,
        [operand, scale, mean, variance, gradient]: [Ref; 5],
        epsilon: f32,
    ) -> Result<Vec<Ref>, OpError> {
        let [centered, variance, deviation] = self.parts([operand, mean, variance], epsilon)?;
        let normal = self.op(OpCode::Divide, [centered, deviation])?;
        let of_scale = self.op(OpCode::Multiply, [gradient, normal])?;
        let of_scale = self.sum(of_scale)?;
        let of_offset = self.sum(gradient)?;
        // The gradient without its mean, and without the component along the variance.
        let count = self.count(&self.whole.clone())?;
        let all = self.op(OpCode::Multiply, [gradient, count])?;
        let sum = self.spread(of_offset)?;
        let weighted = self.op(OpCode::Multiply, [gradient, centered])?;
        let weighted = self.sum(weighted)?;
        let weighted = self.spread(weighted)?;
        let weighted = self.op(OpCode::Multiply, [weighted, centered])?;
        let weighted = self.op(OpCode::Divide, [weighted, variance])?;
        let rest = self.op(OpCode::Subtract, [all, sum])?;
        let rest = self.op(OpCode::Subtract, [rest, weighted])?;
        let scale = self.spread(scale)?;
        let factor = self.op(OpCode::Divide, [scale, deviation])?;
        let factor = self.op(OpCode::Divide, [factor, count])?;
        Ok(vec![self.op(OpCode::Multiply, [factor, rest])?, of_scale, of_offset])
    }
}
