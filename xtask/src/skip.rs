//! Tests that skip themselves, with a reason.

/// The reason of a skipped test: the text after `skipped:` at the start of a line of its output.
pub(crate) fn skip_reason(output: &str) -> Option<&str> {
    output.lines().find_map(skip_reason_of_line)
}

/// Like [`skip_reason`], for one line.
pub(crate) fn skip_reason_of_line(line: &str) -> Option<&str> {
    // On one core the harness prints `test NAME ... ` before the first line of the test.
    let own = match line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... ")) {
        Some((_, own)) => own,
        None => line,
    };
    Some(own.strip_prefix("skipped:")?.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_to_skip_starts_a_line() {
        assert_eq!(skip_reason("running 1 test\nskipped: no plugin \ntest a ... ok\n"), Some("no plugin"));
        assert_eq!(skip_reason("running 1 test\ntest a::b ... skipped: one core\nok\n"), Some("one core"));
        assert_eq!(skip_reason("running 1 test\nit was skipped: not\ntest a ... ok\n"), None);
    }
}
