//! The environment: everything outside a region that its code depends on.
//!
//! Input: a device. Output: named parts, which reports compare, and their fingerprint, which is
//! part of the name of every entry outside the process. Two environments with one fingerprint can
//! run each other's code with the same results. Anything in doubt is a part.
//!
//! Not included are paths and times, so that a folder, a plugin or a home directory may be moved;
//! where data lives; and what the program does. The plugin's file and the environment variables are
//! those with which it was loaded (`pjrt/src/origin.rs`), even if they have changed since.

use fuseline_cache::{Fingerprint, Key, Record, Request, SealedKind};
use fuseline_fusion::canon;
use fuseline_fusion::encode::{Reader, Writer};
use fuseline_fusion::lower::LOWERING;
use fuseline_pjrt::named_files::NamedFiles;

use crate::device::Compiler;
use crate::processor;

/// A part of an environment: name and value.
pub(crate) type Part = (String, String);

/// The parts of an environment, in a fixed order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    parts: Vec<Part>,
}

impl Environment {
    /// The environment of a compiler, given the digest of its plugin, its client options and the
    /// files that its options name; or why it cannot be determined.
    pub(crate) fn of(
        compiler: &Compiler,
        plugin: &blake3::Hash,
        client_options: &str,
        files: &NamedFiles,
    ) -> Result<Environment, String> {
        let mut parts = vec![
            ("fuseline".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            (
                "formats".to_owned(),
                format!(
                    "canonical form {}, lowering {LOWERING}, entry {}",
                    canon::FORMAT,
                    fuseline_cache::FORMAT
                ),
            ),
            ("plugin file".to_owned(), plugin.to_hex().to_string()),
            ("client options".to_owned(), client_options.to_owned()),
        ];
        parts.extend(compiler.parts());
        if compiler.is_for_host() {
            parts.extend(processor::parts());
            // XLA's CPU compiler splits work into as many parts as there are threads.
            parts.push(("threads".to_owned(), compiler.threads().to_owned()));
        }
        parts.extend(files.parts());
        parts.extend(compiler.plugin().origin().variables()?);
        Ok(Environment { parts })
    }

    /// The parts.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The hash of all parts.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.encode())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Writer::new();
        out.len(self.parts.len());
        for (name, value) in &self.parts {
            out.bytes(name.as_bytes());
            out.bytes(value.as_bytes());
        }
        out.into_vec()
    }

    fn decode(bytes: &[u8]) -> Option<Environment> {
        let mut reader = Reader::new(bytes);
        let count = reader.count().ok()?;
        let mut text = || String::from_utf8(reader.bytes().ok()?.to_vec()).ok();
        let parts = (0..count).map(|_| Some((text()?, text()?))).collect::<Option<Vec<_>>>()?;
        reader.finish().ok()?;
        Some(Environment { parts })
    }

    /// The request for the note of an environment.
    pub fn request(fingerprint: Fingerprint) -> Request<'static> {
        Request { region: Key::new([0; 32]), environment: fingerprint, bytes: b"environment" }
    }

    /// A note of the environment, for later inspection of entries.
    pub(crate) fn to_note(&self) -> Record {
        note(Environment::request(self.fingerprint()), self.encode())
    }

    /// Reads a note.
    pub fn of_note(record: &Record) -> Option<Environment> {
        Environment::decode(&record.artifact)
    }

    /// The parts in which two environments differ: name, here, there.
    pub fn differences<'a>(&'a self, other: &'a Environment) -> Vec<(&'a str, &'a str, &'a str)> {
        let value = |parts: &'a [Part], name: &str| {
            parts.iter().find(|(other, _)| other == name).map_or("nothing", |(_, value)| value.as_str())
        };
        let names = self.parts.iter().chain(&other.parts).map(|(name, _)| name.as_str());
        let mut names: Vec<&str> = names.collect();
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        let rows = names.into_iter().map(|name| (name, value(&self.parts, name), value(&other.parts, name)));
        rows.filter(|(_, here, there)| here != there).collect()
    }
}

pub(super) fn note(request: Request<'_>, artifact: Vec<u8>) -> Record {
    Record {
        kind: SealedKind::Note,
        environment: request.environment,
        region: request.region,
        made_in: std::time::Duration::ZERO,
        loaded_in: None,
        request: request.bytes.to_vec(),
        artifact,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(parts: &[(&str, &str)]) -> Environment {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Environment { parts: parts.iter().map(own).collect() }
    }

    #[test]
    fn a_note_says_what_the_environment_was() {
        let here = environment(&[("plugin", "a"), ("threads", "2")]);
        let note = here.to_note();
        assert_eq!(note.request(), Environment::request(here.fingerprint()));
        assert_eq!(Environment::of_note(&note), Some(here));
    }

    #[test]
    fn what_differs_is_told_from_both_sides() {
        let here = environment(&[("plugin", "a"), ("threads", "2"), ("new", "x")]);
        let there = environment(&[("plugin", "b"), ("threads", "2"), ("old", "y")]);
        assert_eq!(
            here.differences(&there),
            [("plugin", "a", "b"), ("new", "x", "nothing"), ("old", "nothing", "y")]
        );
        assert_eq!(here.differences(&here), []);
    }

    /// No part can be moved into its neighbor.
    #[test]
    fn every_part_counts() {
        let all = [
            environment(&[("a", "bc")]),
            environment(&[("ab", "c")]),
            environment(&[("a", "b"), ("c", "")]),
            environment(&[("a", "b")]),
            environment(&[]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[index + 1..].iter().all(|other| other.fingerprint() != one.fingerprint()));
        }
    }
}
