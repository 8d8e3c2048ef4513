//! The pinned packages: `xtask/requirements.txt`, in pip's own format.

/// A package, its version and its allowed hashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Requirement {
    /// The package's name.
    pub(crate) name: String,
    /// The only allowed version.
    pub(crate) version: String,
    /// The requirement as pip reads it, on one line, with its hashes.
    pub(crate) line: String,
    /// The approximate size of the download, in bytes.
    pub(crate) size: u64,
}

impl Requirement {
    /// The name of the folder it is unpacked to.
    pub(crate) fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }
}

/// The committed requirements.
pub(crate) const PINNED: &str = include_str!("../../requirements.txt");

/// Parses a requirements file.
///
/// Every requirement must be pinned (`==`) and have a hash. Anything else is an error, as a
/// sentence.
pub(crate) fn parse(text: &str) -> Result<Vec<Requirement>, String> {
    let mut found = Vec::new();
    let mut size = 0;
    let mut logical = String::new();
    for line in text.lines() {
        let line = line.trim();
        if logical.is_empty() && (line.is_empty() || line.starts_with('#')) {
            if let Some(number) = line.strip_prefix("# size: ") {
                size = number.parse().map_err(|_| format!("`{line}` does not hold a number"))?;
            }
            continue;
        }
        match line.strip_suffix('\\') {
            Some(part) => {
                logical.push_str(part.trim_end());
                logical.push(' ');
            }
            None => {
                logical.push_str(line);
                found.push(requirement(&std::mem::take(&mut logical), std::mem::take(&mut size))?);
            }
        }
    }
    if !logical.is_empty() {
        return Err(format!("`{logical}` ends in the middle"));
    }
    Ok(found)
}

fn requirement(line: &str, size: u64) -> Result<Requirement, String> {
    let mut words = line.split_whitespace();
    let pin = words.next().unwrap_or_default();
    let (name, version) = pin.split_once("==").ok_or_else(|| format!("`{pin}` is not pinned by =="))?;
    let mut hashes = 0;
    for word in words {
        let hash = word.strip_prefix("--hash=sha256:").ok_or_else(|| format!("`{word}` is not a SHA-256"))?;
        if hash.len() != 64 || !hash.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return Err(format!("`{hash}` is not a SHA-256 in lower-case hexadecimal digits"));
        }
        hashes += 1;
    }
    if hashes == 0 {
        return Err(format!("`{pin}` has no hash"));
    }
    Ok(Requirement { name: name.to_owned(), version: version.to_owned(), line: line.to_owned(), size })
}

#[cfg(test)]
mod tests {
    use super::super::piece::Piece;
    use super::*;

    #[test]
    fn the_committed_file_pins_every_package() {
        let pinned = parse(PINNED).expect("the committed requirements");
        for requirement in &pinned {
            assert!(requirement.size > 1_000_000, "{} says how large it is", requirement.name);
        }
        let mut names: Vec<&str> = pinned.iter().map(|requirement| requirement.name.as_str()).collect();
        let packages = Piece::ALL.iter().flat_map(|piece| piece.packages());
        let mut wanted: Vec<&str> = packages.map(|package| package.name).collect();
        names.sort_unstable();
        wanted.sort_unstable();
        assert_eq!(names, wanted);
    }

    /// A package has a wheel for each of its processors. The last package of a piece is for all.
    #[test]
    fn every_piece_is_pinned_for_both_processors() {
        let pinned = parse(PINNED).expect("the committed requirements");
        for packages in Piece::ALL.iter().map(|piece| piece.packages()) {
            for package in packages {
                let requirement = pinned.iter().find(|requirement| requirement.name == package.name);
                let line = &requirement.expect("it is pinned").line;
                assert_eq!(line.matches("--hash=sha256:").count(), package.architectures.len(), "{line}");
            }
            assert!(packages.last().is_none_or(|last| last.architectures == ["x86_64", "aarch64"]));
        }
    }

    #[test]
    fn continued_lines_become_one() {
        let hash = "a".repeat(64);
        let text =
            format!("# size: 7\nfoo==1.2 \\\n    --hash=sha256:{hash}\n\nbar==3 --hash=sha256:{hash}\n");
        let found = parse(&text).expect("well formed");
        assert_eq!(found[0].line, format!("foo==1.2 --hash=sha256:{hash}"));
        assert_eq!((found[0].folder().as_str(), found[0].size), ("foo-1.2", 7));
        assert_eq!((found[1].folder().as_str(), found[1].size), ("bar-3", 0));
    }

    #[test]
    fn what_is_not_pinned_and_hashed_is_refused() {
        let hash = "a".repeat(64);
        for (text, says) in [
            ("foo>=1".to_owned(), "not pinned"),
            ("foo==1".to_owned(), "no hash"),
            (format!("foo==1 --hash=md5:{hash}"), "not a SHA-256"),
            ("foo==1 --hash=sha256:abc".to_owned(), "lower-case"),
            (format!("foo==1 --hash=sha256:{}", hash.to_uppercase()), "lower-case"),
            ("foo==1 \\".to_owned(), "in the middle"),
            ("# size: big".to_owned(), "number"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
