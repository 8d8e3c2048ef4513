//! Hard limits, with their units and reasons. Each is reached by a test.

/// Most dimensions of a tensor. XLA's fusion emitters blow up in compile time past rank 8
/// (openxla/xla#41173); 16 leaves room for reshapes that pass through a higher rank.
pub const MAX_RANK: usize = 16;

/// Most elements of one tensor, 2^59 - 1. XLA computes sizes and offsets in bytes in signed 64-bit
/// integers, and the largest element has 16 bytes: so a tensor can be converted to any element
/// type, which lowerings do to values in between, and its size still fits.
pub const MAX_ELEMS: u64 = i64::MAX as u64 / 16;

/// Most operands of one op. A module with more parameters than this takes seconds to compile.
pub const MAX_OPERANDS: usize = 2_048;

/// Most results of one op. A loop returns all that it carries, which may be the parameters of a
/// network.
pub const MAX_RESULTS: usize = 2_048;

/// Most bytes of a constant that stands in a module as a literal. Literals are part of the key and
/// are printed into the module text, so larger data belongs in a host value, which is neither.
pub const MAX_CONSTANT_BYTES: u64 = 64 * 1_024;

/// Most replicas of a program: more than one process has devices, and as many as a gather has
/// operands.
pub const MAX_REPLICAS: usize = MAX_OPERANDS;

/// Deepest nesting of bodies in bodies (a `reduce` inside a `while` inside a `while` is 3).
pub const MAX_BODY_DEPTH: usize = 16;

/// Most ops of one graph, bodies included. Far above the op budget of a region; it bounds what a
/// malformed program can make us build.
pub const MAX_GRAPH_OPS: usize = 65_536;

/// Most entries of what a call says to its handler, and most integers in a list there. All of it is
/// part of the key of every region that the call stands in; larger data belongs in an operand.
pub const MAX_CONFIG: usize = 256;

/// Most bytes of a name that a user gives to something, such as a composite. It is part of the key
/// of every region that the name stands in.
pub const MAX_NAME: usize = 128;
