//! Calls to handlers.

use std::sync::LazyLock;

use fuseline_fusion::handler::{self, Config, Handler, HandlerCall};
use fuseline_fusion::op::attrs;
use fuseline_fusion::{DTypeSet, TensorType};

use super::{Sample, Sampler};

/// Returns its operands in reverse order.
struct Turn;

impl Handler for Turn {
    fn results(&self, operands: &[TensorType], _: &Config) -> Result<Vec<TensorType>, String> {
        Ok(operands.iter().rev().cloned().collect())
    }

    fn run(&self, call: HandlerCall<'_>) -> Result<(), String> {
        for (result, operand) in call.results.iter_mut().zip(call.operands.iter().rev()) {
            result.bytes.copy_from_slice(operand.bytes);
        }
        Ok(())
    }
}

/// The name of the handler in samples, which is registered for the first sample.
static SAMPLED: LazyLock<&str> = LazyLock::new(|| {
    let name = "fuseline.sampled";
    handler::register(name, Turn).expect("bug: a name of the library's own is taken");
    name
});

/// Some operands, and a configuration with a value of every kind.
pub(crate) fn custom_call(sampler: &mut Sampler<'_>) -> Option<Sample> {
    let count = 1 + sampler.below(3);
    let operands: Option<Vec<_>> =
        (0..count).map(|_| sampler.operand(DTypeSet::WHOLE_BYTES, 0).map(|(operand, _)| operand)).collect();
    let all = [
        ("flag", true.into()),
        ("axis", (-1).into()),
        ("scale", f64::NEG_INFINITY.into()),
        ("name", "a/b:c-d_2.e".into()),
        ("sizes", [i64::MIN, 0, i64::MAX][..].into()),
        ("nothing", [][..].into()),
    ];
    let said = sampler.below(all.len() + 1);
    let config = Config::of(all.into_iter().take(said));
    Some(Sample::plain(operands?, attrs::custom_call(*SAMPLED, config, false)))
}
