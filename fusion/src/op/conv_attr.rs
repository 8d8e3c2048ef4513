//! Positions of the attributes of a convolution.

/// The strides of the window.
pub const STRIDES: usize = 0;
/// The padding of the input.
pub const PADDING: usize = 1;
/// The dilation of the input.
pub const LHS_DILATION: usize = 2;
/// The dilation of the kernel.
pub const RHS_DILATION: usize = 3;
/// The spatial dimensions along which the kernel is reversed.
pub const REVERSAL: usize = 4;
/// The dimension numbers.
pub const DIMS: usize = 5;
/// The number of groups of features.
pub const FEATURE_GROUPS: usize = 6;
/// The number of groups of the batch.
pub const BATCH_GROUPS: usize = 7;
/// The precision of the operands.
pub const PRECISION: usize = 8;
/// The element type of the result.
pub const DTYPE: usize = 9;
