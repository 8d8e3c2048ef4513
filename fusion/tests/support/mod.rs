//! Shared by the property tests: runners whose choices shrink, sampled calls, changes, and
//! properties.
#![allow(dead_code, missing_docs, unreachable_pub, unused_imports, reason = "each test uses a part")]

pub mod answer;
pub mod draft;
pub mod hostile;
pub mod recording;

use std::env;

use fuseline_testgen::Choices;
pub use hostile::{Attempt, Sampled, graph_of, hostile_type, pick, place, sampled};
use proptest::collection::{VecStrategy, vec};
use proptest::num::u32::Any;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A runner with this many cases, times `FUSELINE_CASES` if set. The seed is fixed, or
/// `FUSELINE_SEED`.
pub fn runner(cases: u32) -> TestRunner {
    let number = |name: &str| env::var(name).ok().and_then(|value| value.parse::<u32>().ok());
    let cases = cases.saturating_mul(number("FUSELINE_CASES").unwrap_or(1));
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4_000, ..Config::default() };
    let mut seed = [0x5e; 32];
    seed[..4].copy_from_slice(&number("FUSELINE_SEED").unwrap_or(0).to_le_bytes());
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &seed))
}

/// Lists of choices. After the end of a list the choices are the simplest ones, so shrinking a list
/// shrinks what is made of it.
pub fn choices(most: usize) -> VecStrategy<Any> {
    vec(proptest::num::u32::ANY, 0..=most)
}

/// Choices from a list.
pub fn from(list: &[u32]) -> Choices<'_> {
    Choices::new(list)
}
