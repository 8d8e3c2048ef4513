//! Hard limits, with their units and reasons. A test reaches each of them.

/// Maximum rank of a tensor. XLA's fusion emitters blow up in compile time past rank 8
/// (openxla/xla#41173); 16 leaves room for reshapes that pass through a higher rank.
pub const MAX_RANK: usize = 16;

/// Maximum number of elements of a tensor, 2^59 - 1. XLA computes sizes and offsets in bytes in
/// signed 64-bit integers, and the largest element has 16 bytes. Below this limit a tensor can be
/// converted to any element type, as lowerings do with intermediate values, and its size still
/// fits.
pub const MAX_ELEMS: u64 = i64::MAX as u64 / 16;

/// Maximum number of operands of one op. A module with more parameters takes seconds to compile.
pub const MAX_OPERANDS: usize = 2_048;

/// Maximum number of results of one op. A loop returns everything that it carries, which may be the
/// parameters of a network.
pub const MAX_RESULTS: usize = 2_048;

/// Maximum size of a constant that is a literal in a module, in bytes. Literals are part of the key
/// and are printed into the module text. Larger data belongs in a host value, which is neither.
pub const MAX_CONSTANT_BYTES: u64 = 64 * 1_024;

/// Maximum number of replicas of a program: more than one process has devices, and as many as the
/// operands that a gather can have.
pub const MAX_REPLICAS: usize = MAX_OPERANDS;

/// Maximum nesting of bodies (a `reduce` inside a `while` inside a `while` is 3).
pub const MAX_BODY_DEPTH: usize = 16;

/// Maximum number of ops of one graph, bodies included. It is far above the op budget of a region,
/// and bounds the work that a malformed program can cause.
pub const MAX_GRAPH_OPS: usize = 65_536;

/// Maximum number of entries in the configuration of a call, and of integers in a list there. The
/// configuration is part of the key of every region with the call. Larger data belongs in an
/// operand.
pub const MAX_CONFIG: usize = 256;

/// Maximum length of a name that a user chooses, such as that of a composite, in bytes. The name is
/// part of the key of every region that uses it.
pub const MAX_NAME: usize = 128;
