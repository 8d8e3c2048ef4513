//! Fourier transforms, matrix factorisations and normalisation.

use fuseline_fusion::op::{FftType, Transpose, attrs};
use fuseline_fusion::{OpCode, TensorType};

use super::{Domain, Sample, SampleOperand, Sampler};

pub(crate) fn fft(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let kind = match dtype.is_complex() {
        true => sampler.one_of(&[FftType::Fft, FftType::Ifft, FftType::Irfft])?,
        false => FftType::Rfft,
    };
    let mut dims = sampler.dims(1);
    let count = 1 + sampler.below(dims.len().min(3));
    let lengths: Vec<i64> = dims[dims.len() - count..].iter().map(|&dim| dim as i64).collect();
    if let (FftType::Irfft, Some(last @ 1..)) = (kind, dims.last_mut()) {
        *last = *last / 2 + 1;
    }
    let operand = sampler.operand_of(dtype, &dims)?;
    Some(Sample::plain([operand], attrs::fft(kind, &lengths)))
}

/// Square matrices of one of the row's types. Portable ones are positive definite and
/// well-conditioned.
fn matrices(sampler: &mut Sampler<'_>) -> Option<(SampleOperand, TensorType)> {
    let dtype = sampler.dtype_of(sampler.row_dtypes())?;
    let size = sampler.dim();
    let mut dims: Vec<u64> = (0..sampler.below(3)).map(|_| sampler.dim().min(3)).collect();
    dims.extend([size, size]);
    let ty = TensorType::of(dtype, &dims).ok()?;
    let any = !sampler.portable() && sampler.rarely(3);
    let operand = if any {
        sampler.operand_like(&ty, Domain::Any)
    } else {
        SampleOperand::Fresh(ty.clone(), Domain::PositiveDefinite)
    };
    Some((operand, ty))
}

pub(crate) fn cholesky(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (a, _) = matrices(sampler)?;
    let lower = !sampler.rarely(2);
    Some(Sample::plain([a], attrs::cholesky(lower)))
}

pub(crate) fn triangular_solve(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (a, ty) = matrices(sampler)?;
    let left = !sampler.rarely(2);
    let mut dims = ty.dims().to_vec();
    let other = dims.len() - if left { 1 } else { 2 };
    dims[other] = sampler.dim();
    let b = sampler.operand_of(ty.dtype(), &dims)?;
    let lower = !sampler.rarely(2);
    let unit_diagonal = sampler.rarely(3);
    let transpose = sampler.one_of(&Transpose::ALL)?;
    Some(Sample::plain([a, b], attrs::triangular_solve(left, lower, unit_diagonal, transpose)))
}

pub(crate) fn batch_norm(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let (operand, ty) = sampler.operand(sampler.row_dtypes(), 1)?;
    let axis = sampler.below(ty.rank());
    let per_feature = TensorType::of(ty.dtype(), &ty.dims()[axis..=axis]).ok()?;
    let domains: &[Domain] = match sampler.def.code {
        OpCode::BatchNormTraining => &[Domain::Any; 2],
        OpCode::BatchNormInference => &[Domain::Any, Domain::Any, Domain::Any, Domain::Positive],
        _ => &[Domain::Any, Domain::Any, Domain::Positive],
    };
    let mut operands = vec![operand];
    operands.extend(domains.iter().map(|&domain| sampler.operand_like(&per_feature, domain)));
    if sampler.def.code == OpCode::BatchNormGrad {
        operands.push(sampler.operand_like(&ty, Domain::Any));
    }
    let epsilon = if sampler.portable() {
        sampler.one_of(&[0.5, 0.25, 1e-3])?
    } else {
        sampler.one_of(&[0.5, 1e-5, 0.0, -1.0, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE])?
    };
    Some(Sample::plain(operands, attrs::batch_norm(epsilon, axis as i64)))
}
