//! The output of Rust's test harness, and the stage that needs it: doctests, which nextest does not
//! run.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use super::tally::Tally;
use crate::host::Host;
use crate::skip::skip_reason_of_line;

/// Examples in the documentation.
pub(crate) fn doctests(host: &Host) -> Tally {
    let mut command = host.cargo();
    command.args(["test", "--doc", "--locked", "--workspace", "--all-features", "--no-fail-fast"]);
    command.args(["--", "--show-output"]).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Tally::failed("doctest", format!("could not start cargo: {error}")),
    };
    let mut output = String::new();
    for line in BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok) {
        println!("{line}");
        output += &line;
        output.push('\n');
    }
    let mut tally = tally(&output);
    match child.wait() {
        Ok(status) if status.success() || !tally.failed.is_empty() => {}
        Ok(status) => tally.fail("doctest", format!("cargo test --doc ended with {status}")),
        Err(error) => tally.fail("doctest", format!("could not wait for cargo test --doc: {error}")),
    }
    tally
}

/// Counts the tests in the harness's output, printed with `--show-output`.
pub(crate) fn tally(output: &str) -> Tally {
    let mut passed: Vec<(&str, Option<&str>)> = Vec::new();
    let mut tally = Tally::default();
    let mut announced = 0;
    let mut section: Option<&str> = None;
    for line in output.lines() {
        if let Some((name, outcome)) = line.strip_prefix("test ").and_then(|rest| rest.rsplit_once(" ... ")) {
            section = None;
            match outcome.split([',', ' ']).next() {
                Some("ok") => passed.push((name, None)),
                Some("FAILED") => tally.fail(name, "failed"),
                Some("ignored") => tally.skip(name, outcome),
                _ => {}
            }
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            section = None;
            announced += numbers_before(counts, &["passed", "failed", "ignored"]);
        } else if let Some(name) =
            line.strip_prefix("---- ").and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            section = Some(name);
        } else if let (Some(name), Some(why)) = (section, skip_reason_of_line(line)) {
            for (passed, reason) in &mut passed {
                if *passed == name {
                    reason.get_or_insert(why);
                }
            }
        }
    }
    for (name, reason) in passed {
        match reason {
            Some(why) => tally.skip(name, why),
            None => tally.pass(),
        }
    }
    let seen = tally.passed + tally.failed.len() + tally.skipped.len();
    if seen != announced {
        tally.fail("counts", format!("the harness reports {announced} tests, but {seen} were seen"));
    }
    tally
}

/// The sum of the numbers before these words in `3 passed; 1 failed; ...`.
fn numbers_before(counts: &str, words: &[&str]) -> usize {
    let tokens: Vec<&str> = counts.split([' ', ';', '.']).filter(|token| !token.is_empty()).collect();
    let pairs = tokens.windows(2).filter(|pair| words.contains(&pair[1]));
    pairs.filter_map(|pair| pair[0].parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::super::tally::Note;
    use super::*;

    const OUTPUT: &str = "
   Doc-tests fuseline

running 5 tests
test src/lib.rs - (line 3) ... ok
test src/lib.rs - Engine (line 40) - compile ... ok
test src/tensor.rs - Tensor (line 9) ... FAILED
test src/tensor.rs - Tensor::gpu (line 20) ... ok
test src/tensor.rs - Tensor::slow (line 30) ... ignored

successes:

---- src/lib.rs - (line 3) stdout ----
a line of its own, not skipped: at all

---- src/tensor.rs - Tensor::gpu (line 20) stdout ----
looking for a device
skipped: no CUDA plugin


failures:

---- src/tensor.rs - Tensor (line 9) stdout ----
skipped: this one failed all the same

test result: FAILED. 3 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.10s

all doctests ran in 0.50s; merged doctests compilation took 0.38s
   Doc-tests fuseline_cache

running 0 tests

test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";

    fn note(name: &str, why: &str) -> Note {
        Note::new(name, why)
    }

    #[test]
    fn every_test_is_counted_once() {
        assert_eq!(
            tally(OUTPUT),
            Tally {
                passed: 2,
                failed: vec![note("src/tensor.rs - Tensor (line 9)", "failed")],
                skipped: vec![
                    note("src/tensor.rs - Tensor::slow (line 30)", "ignored"),
                    note("src/tensor.rs - Tensor::gpu (line 20)", "no CUDA plugin"),
                ],
            }
        );
    }

    #[test]
    fn a_test_that_vanished_is_a_failure() {
        let cut = OUTPUT.replace("test src/lib.rs - (line 3) ... ok\n", "");
        assert_eq!(tally(&cut).failed[1], note("counts", "the harness reports 5 tests, but 4 were seen"));
    }
}
