//! `docs/tutorial.md` shows the code of `examples/mlp.rs`, which runs as a documentation test.

const TUTORIAL: &str = include_str!("../../docs/tutorial.md");
const EXAMPLE: &str = include_str!("../../examples/mlp.rs");

/// The lines without what they are indented by: a part of the program stands further to the left.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_tutorials_code_is_the_examples() {
    let example = lines(EXAMPLE);
    let blocks: Vec<&str> =
        TUTORIAL.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= 6);
    let mut shown = vec![false; example.len()];
    for block in blocks {
        let block = lines(block);
        let found = example.windows(block.len()).position(|part| part == block);
        let at = found.unwrap_or_else(|| panic!("the example does not have\n{}", block.join("\n")));
        shown[at..at + block.len()].fill(true);
    }
    // What it leaves out are imports, comments, brackets and what is printed at the end.
    let left: Vec<&str> =
        example.iter().zip(&shown).filter(|(_, shown)| !**shown).map(|(line, _)| *line).collect();
    assert!(left.len() <= 16, "{left:#?}");
}

#[test]
fn the_example_is_short() {
    let count = EXAMPLE.lines().count();
    assert!(count < 60);
    assert!(TUTORIAL.contains(&format!("{count} lines long")));
}

/// The line that the tutorial's event names is that of the op.
#[test]
fn the_event_names_the_line_of_the_example() {
    let at = EXAMPLE.lines().position(|line| line.contains("dynamic_slice")).unwrap() + 1;
    assert!(TUTORIAL.contains(&format!("examples/mlp.rs:{at}")));
}
