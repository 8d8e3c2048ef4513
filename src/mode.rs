//! Modes in force for a scope of the program.

use fuseline_fusion::region::Mode;
use fuseline_record::mode;

/// Calls `f`. Every op that this thread records meanwhile, on any stream, has the given mode.
/// Scopes nest, and end when `f` returns or panics. An op captures its mode when it is recorded, so
/// nothing has to be flushed at either end.
///
/// ```
/// # fn main() -> fuseline::Result<()> {
/// # let engine = fuseline::Engine::reference();
/// let x = engine.tensor(&[1.0f32, 4.0], &[2])?;
/// let y = fuseline::with_mode(fuseline::Mode::Debug, || x.sqrt())?;
/// assert_eq!(y.to_vec::<f32>()?, [1.0, 2.0]);
/// # Ok(())
/// # }
/// ```
pub fn with_mode<R>(mode: Mode, f: impl FnOnce() -> R) -> R {
    mode::with_mode(mode, f)
}
