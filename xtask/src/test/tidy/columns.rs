//! Limits the width of prose: lines of Markdown and of comments.
//!
//! Many lines were longer when the rule was introduced. `tests/columns.txt` has their number for
//! each file, which may not grow. A file without an entry may have none.

use std::collections::BTreeMap;
use std::fs;

use super::tokens::{Syntax, split};
use super::{Tree, Verdict};
use crate::host::Host;

/// The largest number of columns of a line of prose, in characters.
const MAX_COLUMNS: usize = 100;

/// The number of long lines of each file, as long as there are any.
const LIST: &str = "tests/columns.txt";
const HEADER: &str = "# How many lines of prose with more than 100 columns each file has, which may become \
                      fewer. Fewer?\n\
                      # FUSELINE_BLESS=1 cargo xtask test tidy\n";

/// The variable that makes the stage rewrite the list.
const BLESS: &str = "FUSELINE_BLESS";

/// Generated files.
const GENERATED: [&str; 1] = ["capi/include/fuseline.h"];

/// No file has more long lines of prose than listed.
pub(crate) fn columns(tree: &Tree) -> Verdict {
    let mut listed = match parse(tree.text(LIST).unwrap_or_default()) {
        Ok(listed) => listed,
        Err(line) => return Verdict::Failed(vec![format!("{LIST}: not a number and a file: {line}")]),
    };
    let mut findings = Vec::new();
    for (path, text) in tree.texts() {
        let (long, allowed) = (long_lines(path, text), listed.remove(path).unwrap_or(0));
        if long.len() > allowed {
            let lines: Vec<String> = long.iter().map(usize::to_string).collect();
            let at = lines.join(", ");
            findings.push(match allowed {
                0 => format!("{path}: lines of prose with more than {MAX_COLUMNS} columns: {at}"),
                _ => format!(
                    "{path}: {} lines of prose with more than {MAX_COLUMNS} columns, and {LIST} has {allowed}: {at}",
                    long.len()
                ),
            });
        } else if long.len() < allowed {
            findings.push(lower(path, long.len(), allowed));
        }
    }
    findings.extend(listed.into_iter().map(|(path, allowed)| lower(path, 0, allowed)));
    Verdict::of(findings)
}

fn lower(path: &str, long: usize, allowed: usize) -> String {
    format!("{path}: {long} long lines, and {LIST} has {allowed}: lower the number ({BLESS}=1)")
}

/// Rewrites the list on request. Files may have been moved, so a number may grow; the sum may not.
pub(crate) fn bless(host: &Host, mut tree: Tree) -> anyhow::Result<Tree> {
    if host.var(BLESS).is_some()
        && let Some(list) = rewritten(&tree)
    {
        fs::write(host.root.join(LIST), &list)?;
        tree.files.insert(LIST.to_owned(), Some(list));
    }
    Ok(tree)
}

/// The new list; `None` if there are more long lines in total than listed.
fn rewritten(tree: &Tree) -> Option<String> {
    let counts = tree.texts().map(|(path, text)| (path, long_lines(path, text).len()));
    let counts: Vec<(&str, usize)> = counts.filter(|(_, long)| *long > 0).collect();
    let sum: usize = counts.iter().map(|(_, long)| long).sum();
    if let Some(listed) = tree.text(LIST)
        && parse(listed).is_ok_and(|listed| sum > listed.values().sum())
    {
        return None;
    }
    let lines: String = counts.iter().map(|(path, long)| format!("{long} {path}\n")).collect();
    Some(format!("{HEADER}{lines}"))
}

/// Parses the list. Fails with the first line that is not a number and a file.
fn parse(text: &str) -> Result<BTreeMap<&str, usize>, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let (long, path) = line.split_once(' ').ok_or(line)?;
            Ok((path, long.parse().map_err(|_| line)?))
        })
        .collect()
}

/// The numbers of the long lines of prose.
fn long_lines(path: &str, text: &str) -> Vec<usize> {
    let ending =
        path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map_or("", |(_, ending)| ending);
    // Most files have no long line at all.
    if GENERATED.contains(&path) || text.lines().all(fits) {
        return Vec::new();
    }
    let prose = match ending {
        "md" => markdown(text),
        "rs" => comments(text, Syntax::Rust),
        "c" | "cc" | "cpp" | "h" | "hpp" => comments(text, Syntax::C),
        "py" => python(text),
        "sh" => shell(text),
        _ if text.starts_with("#!/") => shell(text),
        _ => Vec::new(),
    };
    let lines: Vec<&str> = text.lines().collect();
    let long = |line: &usize| lines.get(line - 1).is_some_and(|text| !fits(text) && !is_excepted(text));
    prose.into_iter().filter(long).collect()
}

fn fits(line: &str) -> bool {
    line.len() <= MAX_COLUMNS || line.chars().count() <= MAX_COLUMNS
}

/// Whether a long line cannot be broken: a table row, or a line that would fit without the targets
/// of its links.
fn is_excepted(line: &str) -> bool {
    let content = line.trim_start().trim_start_matches(['/', '!', '*', '#']).trim_start();
    content.starts_with('|') || fits(&without_links(line))
}

/// A line without URLs (`https://...`) and without the targets of `[text](target)`.
fn without_links(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("](") {
        let target = &rest[at + 2..];
        kept.push_str(&rest[..at]);
        rest = target.find(')').map_or("", |end| &target[end + 1..]);
    }
    kept.push_str(rest);
    kept.split_inclusive(' ').filter(|word| !word.contains("://")).collect()
}

/// The lines of Markdown outside code blocks.
fn markdown(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let prose = text.lines().zip(1..).filter(|(line, _)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_fence && !is_code
    });
    prose.map(|(_, number)| number).collect()
}

fn comments(text: &str, syntax: Syntax) -> Vec<usize> {
    let mut lines: Vec<usize> = split(text, syntax).comments.iter().map(|comment| comment.line).collect();
    lines.dedup();
    lines
}

/// Lines with a comment, and those of a triple-quoted string that begins its line.
fn python(text: &str) -> Vec<usize> {
    let mut prose = Vec::new();
    // The quotes that end the open string, and whether the string is a docstring.
    let mut string: Option<(&str, bool)> = None;
    for (line, number) in text.lines().zip(1..) {
        let (mut rest, was) = (line, string);
        let mut is_prose = was.is_some_and(|(_, is_documentation)| is_documentation);
        loop {
            let Some((quotes, _)) = string else {
                let Some(at) = ["\"\"\"", "'''"].iter().filter_map(|quotes| rest.find(quotes)).min() else {
                    break;
                };
                if has_comment(&rest[..at]) {
                    break;
                }
                let begins = was.is_none() && line[..line.len() - rest.len() + at].trim().len() <= 1;
                is_prose |= begins;
                string = Some((&rest[at..at + 3], begins));
                rest = &rest[at + 3..];
                continue;
            };
            let Some(end) = rest.find(quotes) else { break };
            (rest, string) = (&rest[end + 3..], None);
        }
        if is_prose || string.is_none() && has_comment(rest) {
            prose.push(number);
        }
    }
    prose
}

fn shell(text: &str) -> Vec<usize> {
    text.lines().zip(1..).filter(|(line, _)| has_comment(line)).map(|(_, number)| number).collect()
}

/// Whether a line has a `#` that begins a comment: at the start of a word, outside of quotes.
fn has_comment(line: &str) -> bool {
    line.match_indices('#').any(|(at, _)| {
        let before = &line[..at];
        let is_even = |quote: char| before.matches(quote).count().is_multiple_of(2);
        !before.ends_with(|c: char| !c.is_whitespace()) && is_even('"') && is_even('\'')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces `~` in a text by a word of 96 characters.
    fn long(text: &str) -> String {
        text.replace('~', &"x".repeat(96))
    }

    #[test]
    fn long_lines_of_prose_are_found() {
        let table: [(&str, &str, &[usize]); 26] = [
            ("a.md", "~ 1234\n~ 123\n# ~ 1234", &[1, 3]),
            // Characters, not bytes.
            ("a.md", "~ äöü", &[]),
            ("a.md", "| ~ | ~ |", &[]),
            ("a.md", "```sh\n~ 1234\n```\n~ 1234", &[4]),
            ("a.md", "[a](~) ~", &[]),
            ("a.md", "[a](~) ~ 1", &[1]),
            ("a.md", "see https://~ and\n[x]: https://~ <https://~>", &[]),
            ("a.rs", "// ~ 1234\nlet x = \"~\"; // why\n//! | ~ | ~ |", &[1, 2]),
            ("a.rs", "let x = \"// ~ 1234\";\nf(~, ~);", &[]),
            ("a.rs", "/* ~ 1234\n ~ 1234 */\n~ 1234", &[1, 2]),
            ("a.rs", "/// ```\n/// ~ 1234\n/// ```", &[2]),
            ("a.cpp", "// ~ 1234\nf(\"// ~ 1234\");", &[1]),
            ("a.h", "/*\n * ~ 1234\n */\nint ~, ~;", &[2]),
            ("a.py", "# ~ 1234\nf(~, ~)\nx = ~  # why", &[1, 3]),
            ("a.py", "x = \"# ~ 1234\"\ny = '''\n# ~ 1234\n'''\n", &[]),
            ("a.py", "def f():\n    \"\"\"~ 1234\n    ~ 1234\n    \"\"\"\n    ~ 1234", &[2, 3]),
            ("a.py", "r'''~ 1234'''\nx = f'''~ 1234'''\n# it's '''\n# ~ 1234", &[1, 4]),
            ("a.sh", "# ~ 1234\necho ~ 1234\necho \"$# # ~ 1234\"\nx=${~#1234} # y", &[1, 4]),
            ("run", "#!/bin/sh\n# ~ 1234", &[2]),
            ("run", "# ~ 1234", &[]),
            ("a.toml", "# ~ 1234", &[]),
            ("docs/ops.md", "~ 1234", &[1]),
            ("capi/include/fuseline.h", "// ~ 1234", &[]),
            ("a.md", "", &[]),
            ("a.rs", "", &[]),
            ("a.b/c", "~ 1234", &[]),
        ];
        for (path, text, lines) in table {
            assert_eq!(long_lines(path, &long(text)), lines, "{path}: {text}");
        }
    }

    #[test]
    fn numbers_may_only_be_lowered() {
        let text = long("~ 1234\n\n~ 1234\n");
        let verdict = |list| columns(&Tree::of([("a.md", &text), (LIST, list)]));
        assert_eq!(verdict("# why\n2 a.md\n"), Verdict::Passed);
        for (list, finding) in [
            ("", "a.md: lines of prose with more than 100 columns: 1, 3"),
            (
                "1 a.md\n",
                "a.md: 2 lines of prose with more than 100 columns, and tests/columns.txt has 1: 1, 3",
            ),
            (
                "3 a.md\n",
                "a.md: 2 long lines, and tests/columns.txt has 3: lower the number (FUSELINE_BLESS=1)",
            ),
            (
                "2 a.md\n1 b.md\n",
                "b.md: 0 long lines, and tests/columns.txt has 1: lower the number (FUSELINE_BLESS=1)",
            ),
            ("x a.md\n", "tests/columns.txt: not a number and a file: x a.md"),
        ] {
            assert_eq!(verdict(list), Verdict::Failed(vec![finding.to_owned()]), "{list}");
        }
        assert_eq!(columns(&Tree::of([("a.md", "short")])), Verdict::Passed);
    }

    #[test]
    fn the_list_is_written_anew_unless_its_sum_would_grow() {
        let text = long("~ 1234\n");
        let list = |list| rewritten(&Tree::of([("a.md", &text), ("b.md", "short"), (LIST, list)]));
        let wanted = Some(format!("{HEADER}1 a.md\n"));
        // A file was moved or has become better.
        assert_eq!(list("1 old.md\n"), wanted);
        assert_eq!(list("3 a.md\n2 b.md\n"), wanted);
        assert_eq!(list(""), None);
        assert_eq!(rewritten(&Tree::of([("a.md", &text)])), wanted);
    }
}
