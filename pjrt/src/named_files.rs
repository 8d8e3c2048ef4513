//! Files that compiler settings name: environment variables, options, and files of flags.
//!
//! An executable depends on the contents of these files, not on their names. The plugin reads files
//! of flags once, before its first compile returns. It may read any other file (a profile,
//! autotuning results, a toolkit folder) at each compile, so such a file must not change.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use fuseline_fusion::encode::Writer;

use super::identity::{Identity, open};

/// Maximum size of a file that a setting names. The contents of a larger file count as unknown.
const MAX_BYTES: u64 = 64 << 20;

/// Maximum number of files that a setting names.
const MAX_FILES: usize = 64;

/// Maximum number of files in a folder that a setting names.
const MAX_FILES_IN_FOLDER: usize = 20_000;

/// With this flag XLA reads its flags again each time.
const RESET_FLAG: &[u8] = b"xla_flags_reset";

/// A name and its value.
pub(crate) type Part = (String, String);

/// The kind of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    /// An environment variable: flags, or the name of a file of flags.
    Variable,
    /// The value of an option.
    Option,
    /// The contents of a file that another setting names.
    File,
}

/// A file, with the hash of its contents at the time when the setting was read.
#[derive(Clone, Debug)]
struct NamedFile {
    /// The setting that names it, and the hash of its contents.
    part: Part,
    path: PathBuf,
    /// `None` for a folder.
    identity: Option<Identity>,
    /// Whether it is a file of flags, which the plugin reads once.
    has_flags: bool,
}

impl PartialEq for NamedFile {
    fn eq(&self, other: &NamedFile) -> bool {
        (&self.part, &self.path) == (&other.part, &other.path)
    }
}

impl Eq for NamedFile {}

impl NamedFile {
    /// Whether its contents have changed since the setting was read.
    fn is_changed(&self) -> bool {
        let Ok(metadata) = std::fs::metadata(&self.path) else { return true };
        if self.identity.is_some_and(|identity| identity == Identity::of(&metadata)) {
            return false;
        }
        !digest(&self.path, &metadata).is_ok_and(|(hash, _)| hash.to_hex().as_str() == self.part.1)
    }
}

/// The files that settings name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFiles {
    files: Vec<NamedFile>,
    are_flags_read_anew: bool,
}

impl NamedFiles {
    /// Adds the files that the value of a setting names (as a whole, as a word, or as the value of
    /// a flag), and those that files of flags name.
    ///
    /// # Errors
    /// If the contents of a file cannot be determined.
    pub fn add(&mut self, label: &str, value: &[u8], setting: Setting) -> Result<(), String> {
        let mut left = VecDeque::from([(value.to_vec(), setting)]);
        let first = self.files.len();
        while let Some((text, setting)) = left.pop_front() {
            self.are_flags_read_anew |= text.windows(RESET_FLAG.len()).any(|part| part == RESET_FLAG);
            for (path, has_flags) in paths(&text, setting) {
                let Ok(metadata) = std::fs::metadata(&path) else { continue };
                let is_known = self.files[first..].iter().any(|file| file.path == path);
                if is_known || path == Path::new("/dev/null") {
                    continue;
                }
                let unknown = |why: &str| format!("{label} names {}, which {why}", path.display());
                if self.files.len() - first == MAX_FILES {
                    return Err(unknown("exceeds the maximum number of files that can be examined"));
                }
                let (hash, text) =
                    digest(&path, &metadata).map_err(|error| unknown(&format!("cannot be read: {error}")))?;
                left.extend(text.map(|text| (text, Setting::File)));
                let name = format!("{label}, file {}", self.files.len() - first);
                self.files.push(NamedFile {
                    part: (name, hash.to_hex().to_string()),
                    identity: (!metadata.is_dir()).then(|| Identity::of(&metadata)),
                    path,
                    has_flags,
                });
            }
        }
        Ok(())
    }

    /// The settings with the hashes of their files' contents.
    pub fn parts(&self) -> impl Iterator<Item = Part> {
        self.files.iter().map(|file| file.part.clone())
    }

    /// Adds the files that the value of an option names, unless the compiler writes to them.
    ///
    /// # Errors
    /// As [`NamedFiles::add`].
    pub fn add_option(&mut self, kind: &str, name: &str, value: &str) -> Result<(), String> {
        if is_output(name.as_bytes()) {
            return Ok(());
        }
        self.add(&format!("{kind} {name}"), value.as_bytes(), Setting::Option)
    }

    /// Whether XLA reads its flags again each time.
    pub fn are_flags_read_anew(&self) -> bool {
        self.are_flags_read_anew
    }

    /// Checks that files that may be read at each compile are unchanged.
    ///
    /// # Errors
    /// The name of a file that has changed.
    pub fn check(&self) -> Result<(), String> {
        match self.files.iter().find(|file| !file.has_flags && file.is_changed()) {
            None => Ok(()),
            Some(file) => {
                let (path, setting) = (file.path.display(), &file.part.0);
                Err(format!("{path} was changed since the engine read the setting that names it ({setting})"))
            }
        }
    }
}

/// The parts of a text that may be file names, each with whether it would be a file of flags: the
/// whole value, each of its words, and the values of flags.
fn paths(text: &[u8], setting: Setting) -> Vec<(PathBuf, bool)> {
    let mut names: Vec<(&[u8], bool)> = Vec::new();
    let is_variable = setting == Setting::Variable;
    if setting != Setting::File {
        names.push((text, is_variable));
    }
    for word in text.split(u8::is_ascii_whitespace) {
        match setting {
            Setting::Variable | Setting::Option => names.push((word, is_variable)),
            Setting::File if !word.starts_with(b"-") => continue,
            Setting::File => {}
        }
        let flag = word.split(|byte| *byte == b'=').next().unwrap_or_default();
        if is_output(flag) {
            continue;
        }
        if let Some(value) = word.get(flag.len() + 1..) {
            let is_flagfile = has(flag, b"flagfile");
            names.push((value, is_flagfile));
            names.extend(value.split(|byte| *byte == b',').map(|value| (value, is_flagfile)));
        }
    }
    // A quoted value may contain spaces.
    let has_flags = setting != Setting::File || text.trim_ascii_start().starts_with(b"-");
    for quote in [b'"', b'\''].into_iter().filter(|_| has_flags) {
        let mut before: &[u8] = b"";
        for part in text.split(|byte| *byte == quote) {
            names.push((part, before.ends_with(b"flagfile=")));
            before = part;
        }
    }
    let is_name = |name: &[u8]| !name.is_empty() && name.len() < 4096 && !name.contains(&0);
    let names = names.into_iter().filter(|(name, _)| is_name(name));
    let mut paths: Vec<_> =
        names.map(|(name, has_flags)| (PathBuf::from(OsStr::from_bytes(name)), has_flags)).collect();
    paths.dedup();
    paths
}

/// Whether a flag names a file or a folder that the compiler writes to.
fn is_output(flag: &[u8]) -> bool {
    has(flag, b"dump")
}

fn has(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|part| part == word)
}

/// The hash of the contents of a file or folder, and the contents of a file.
fn digest(path: &Path, metadata: &Metadata) -> io::Result<(blake3::Hash, Option<Vec<u8>>)> {
    if metadata.is_dir() {
        return Ok((folder_digest(path)?, None));
    }
    let mut bytes = Vec::new();
    open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok((blake3::hash(&bytes), Some(bytes)))
}

/// The hash of the contents of a folder: names, sizes and times. Its files may be large, such as
/// those of a CUDA toolkit.
fn folder_digest(path: &Path) -> io::Result<blake3::Hash> {
    let mut files = Vec::new();
    let mut left = vec![path.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                left.push(entry.path());
            }
            files.push((entry.path(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()));
            if files.len() > MAX_FILES_IN_FOLDER {
                return Err(io::ErrorKind::FileTooLarge.into());
            }
        }
    }
    files.sort_unstable();
    let mut out = Writer::new();
    for (path, size, seconds, nanos) in files {
        out.bytes(path.as_os_str().as_bytes());
        out.uint(size);
        out.int(seconds);
        out.int(nanos);
    }
    Ok(blake3::hash(&out.into_vec()))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn of(value: &str, setting: Setting) -> NamedFiles {
        let mut files = NamedFiles::default();
        files.add("setting", value.as_bytes(), setting).expect("files");
        files
    }

    /// A file that is read at each compile must not change. A file of flags may, once it was read.
    #[test]
    fn what_is_read_at_each_compile_is_watched() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let text = path.to_str().expect("UTF-8");
        let write = |text: &str| std::fs::write(&path, text).expect("written");
        let cases = [
            (text.to_owned(), Setting::Option, true),
            (format!("--xla_profile={text}"), Setting::Variable, true),
            (format!("--xla_profile=\"{text}\""), Setting::Variable, true),
            (format!("--flagfile={text}"), Setting::Variable, false),
            (format!("--flagfile=\"{text}\""), Setting::Variable, false),
            (text.to_owned(), Setting::Variable, false),
        ];
        for (value, setting, is_watched) in cases {
            write("--a");
            let files = of(&value, setting);
            assert_eq!(files.parts().count(), 1, "{value}");
            assert_eq!(files.check(), Ok(()));
            write("--a");
            assert_eq!(files.check(), Ok(()), "{value}: the same contents once more");
            write("--b");
            assert_eq!(files.check().is_err(), is_watched, "{value}");
            std::fs::remove_file(&path).expect("removed");
            assert_eq!(files.check().is_err(), is_watched, "{value}");
        }
        let within = of(folder.path().to_str().expect("UTF-8"), Setting::Option);
        assert_eq!(within.check(), Ok(()));
        write("--a");
        let error = within.check().expect_err("it has a file");
        assert!(error.contains("changed") && error.contains("setting"), "{error}");
    }

    #[test]
    fn the_contents_of_a_file_that_an_option_names_are_a_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let parts = |text: &str| {
            std::fs::write(&path, text).expect("written");
            of(path.to_str().expect("UTF-8"), Setting::Option).parts().collect::<Vec<_>>()
        };
        assert_ne!(parts("a"), parts("b"));
        assert!(of("no such file", Setting::Option).parts().next().is_none());
    }
}
