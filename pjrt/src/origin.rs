//! The origin of a plugin: the file that it was loaded from, and the environment variables that it
//! saw.
//!
//! Executables are stored for other processes under everything that they depend on. That has to
//! describe the code that runs, not what is at its path by now. The file is opened before the
//! loader opens it, and stays open: `pip install -U` puts another file at the path, and this one
//! can still be read. Variables are read before the plugin is loaded. XLA reads its flags once, at
//! some call before the first compile has returned. Until then they are compared: if they have
//! changed meanwhile, it is unknown what the plugin has read. Variables may name files
//! (`named_files.rs`), whose contents count as part of them.
//!
//! Input: a file, and the environment of the process. Output: identity and digest of the mapped
//! file, and variables as parts of a key; or why they are unknown, and then nothing is stored.
//!
//! Invariants:
//! - ORIGIN-12: a digest is of the bytes that were mapped when the library was loaded, or there is
//!   none.
//! - ORIGIN-13: variables are those that the plugin has read or will read, or there are none.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use fuseline_fusion::encode::Writer;

use super::identity::{Identity, open};
use super::named_files::{NamedFiles, Part, Setting};

/// Variables that change what XLA and its plugins compile, or what compiled code computes: flags of
/// XLA, of its use in TensorFlow, and of TPUs; the number of parts into which XLA's CPU compiler
/// splits work; the libraries that its code calls.
const VARIABLES: [&str; 5] =
    ["PJRT_NPROC", "NPROC", "OMP_NUM_THREADS", "NVIDIA_TF32_OVERRIDE", "TF_XLA_FLAGS"];

/// Prefixes of the names of such variables.
const FAMILIES: [&str; 8] =
    ["XLA_", "LIBTPU_", "ONEDNN_", "DNNL_", "CUDNN_", "CUBLAS_", "TF_CUDNN_", "TF_CUBLAS_"];

/// The origin of a plugin.
#[derive(Debug)]
pub struct Origin {
    file: Result<(File, Identity), String>,
    variables: Result<Variables, String>,
    /// Whether the plugin has read its flags.
    is_settled: AtomicBool,
    /// Whether it is unknown what it has read.
    is_lost: AtomicBool,
}

/// A file that will be loaded.
pub(super) struct Loading {
    file: File,
    identity: Identity,
    variables: Result<Variables, String>,
}

impl Loading {
    /// Called before the loader opens the file.
    pub(super) fn begin(path: &Path) -> io::Result<Loading> {
        let file = open(path)?;
        let identity = Identity::of(&file.metadata()?);
        Ok(Loading { file, identity, variables: Variables::of_process() })
    }

    /// Called after this process has loaded it for the first time.
    pub(super) fn end(self, path: &Path) -> Origin {
        let is_same = std::fs::metadata(path).is_ok_and(|now| Identity::of(&now) == self.identity);
        let replaced = || format!("{} was replaced while it was loaded", path.display());
        let file = if is_same { Ok((self.file, self.identity)) } else { Err(replaced()) };
        Origin::new(file, self.variables)
    }

    /// Called if something else in the process had loaded it before; it may then have read its
    /// flags long ago. `code` is an address in it.
    pub(super) fn end_of_loaded(self, path: &Path, code: usize) -> Origin {
        let is_mapped = mapped(code).is_some_and(|number| number == self.identity.number);
        let replaced = || {
            format!(
                "{} was loaded by another part of the program, and may have been replaced since",
                path.display()
            )
        };
        let file = if is_mapped { Ok((self.file, self.identity)) } else { Err(replaced()) };
        let variables = self.variables.and_then(|now| match initial().map(relevant) {
            Some(initial) if now.files.parts().next().is_none() && initial == now.values => Ok(now),
            _ => Err("the plugin was loaded by another part of the program, possibly with other \
                      environment variables"
                .to_owned()),
        });
        Origin::new(file, variables)
    }
}

impl Origin {
    fn new(file: Result<(File, Identity), String>, variables: Result<Variables, String>) -> Origin {
        Origin { file, variables, is_settled: AtomicBool::new(false), is_lost: AtomicBool::new(false) }
    }

    /// The origin of a function table without a file.
    pub(super) fn unknown() -> Origin {
        let why = "the plugin was not loaded from a file";
        Origin::new(Err(why.to_owned()), Err(why.to_owned()))
    }

    /// Identifies the file without reading it. The identity changes when the file is written to or
    /// replaced.
    pub fn identity(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        let (_, identity) = self.file.as_ref().map_err(String::clone)?;
        let mut out = Writer::new();
        out.raw(b"plugin file");
        for number in [identity.device, identity.number, identity.size] {
            out.uint(number);
        }
        for (seconds, nanos) in [identity.modified, identity.changed] {
            out.int(seconds);
            out.int(nanos);
        }
        Ok(out.into_vec())
    }

    /// The hash of the mapped bytes.
    pub fn digest(&self) -> Result<blake3::Hash, String> {
        let (file, _) = self.file.as_ref().map_err(String::clone)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 18];
        let mut at = 0;
        loop {
            let read = file
                .read_at(&mut buffer, at)
                .map_err(|error| format!("the plugin cannot be read: {error}"))?;
            if read == 0 {
                break;
            }
            hasher.update(&buffer[..read]);
            at += read as u64;
        }
        // If the file was written to meanwhile, the hash is of neither version.
        self.check()?;
        Ok(hasher.finalize())
    }

    /// The variables that it saw, and the contents of the files that they name.
    pub fn variables(&self) -> Result<Vec<Part>, String> {
        self.check()?;
        self.variables.as_ref().map(Variables::parts).map_err(String::clone)
    }

    /// Checks that all of this is unchanged.
    pub fn check(&self) -> Result<(), String> {
        let (file, identity) = self.file.as_ref().map_err(String::clone)?;
        let variables = self.variables.as_ref().map_err(String::clone)?;
        let now = file.metadata().map_err(|error| format!("the plugin cannot be examined: {error}"))?;
        let is = Identity::of(&now);
        // Adding or removing a hard link changes nothing in the file except its change time.
        let has_other_names = is.links != identity.links;
        let is_as_it_was = Identity { links: identity.links, changed: identity.changed, ..is } == *identity;
        if is != *identity && !(has_other_names && is_as_it_was) {
            return Err("the plugin's file was written to since it was loaded".to_owned());
        }
        self.look(variables);
        if self.is_lost.load(Ordering::Relaxed) {
            return Err("environment variables that the plugin reads were changed after it was loaded, \
                 and it is unknown which values it read"
                .to_owned());
        }
        variables.files.check()
    }

    /// Called when the plugin may be about to read its flags, or may just have read them.
    pub(super) fn note_call(&self) {
        if let Ok(variables) = &self.variables {
            self.look(variables);
        }
    }

    /// Called when the plugin has compiled something, and so has read its flags.
    pub(super) fn note_compile(&self) {
        if let Ok(variables) = &self.variables
            && !self.is_settled.load(Ordering::Relaxed)
        {
            self.look(variables);
            self.is_settled.store(!variables.files.are_flags_read_anew(), Ordering::Relaxed);
        }
    }

    fn look(&self, variables: &Variables) {
        if !self.is_settled.load(Ordering::Relaxed) && Variables::of_process().as_ref() != Ok(variables) {
            self.is_lost.store(true, Ordering::Relaxed);
        }
    }
}

/// Variables, and the files that they name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Variables {
    values: Vec<(OsString, OsString)>,
    files: NamedFiles,
}

/// The relevant variables of an environment, by name.
fn relevant(all: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    let is_ours = |name: &OsStr| {
        let name = name.as_bytes();
        VARIABLES.iter().any(|known| known.as_bytes() == name)
            || FAMILIES.iter().any(|family| name.starts_with(family.as_bytes()))
    };
    let mut values: Vec<_> = all.into_iter().filter(|(name, _)| is_ours(name)).collect();
    values.sort_unstable();
    values
}

impl Variables {
    fn of_process() -> Result<Variables, String> {
        Variables::of(std::env::vars_os())
    }

    fn of(all: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Variables, String> {
        let mut variables = Variables { values: relevant(all), ..Variables::default() };
        for (name, value) in &variables.values {
            let name = format!("variable {}", name.to_string_lossy());
            variables.files.add(&name, value.as_bytes(), Setting::Variable)?;
        }
        Ok(variables)
    }

    fn parts(&self) -> Vec<Part> {
        let values = self.values.iter().map(|(name, value)| {
            let text = match value.to_str() {
                Some(text) => text.to_owned(),
                // Values that cannot be displayed are still distinguished.
                None => format!("{} ({})", value.to_string_lossy(), blake3::hash(value.as_bytes()).to_hex()),
            };
            (format!("variable {}", name.to_string_lossy()), text)
        });
        values.chain(self.files.parts()).collect()
    }
}

/// The inode number of the file that is mapped at an address, if it still has its name.
fn mapped(code: usize) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().filter(|line| !line.ends_with(" (deleted)")).find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let within = usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
        within.contains(&code).then(|| words.nth(3)?.parse().ok()).flatten()
    })
}

/// The environment with which the process was started.
fn initial() -> Option<Vec<(OsString, OsString)>> {
    let bytes = std::fs::read("/proc/self/environ").ok()?;
    let row = |row: &[u8]| {
        let at = row.iter().position(|byte| *byte == b'=')?;
        Some((OsStr::from_bytes(&row[..at]).to_owned(), OsStr::from_bytes(&row[at + 1..]).to_owned()))
    };
    Some(bytes.split(|byte| *byte == 0).filter_map(row).collect())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn of(rows: &[(&str, &str)]) -> Result<Variables, String> {
        Variables::of(rows.iter().map(|(name, value)| ((*name).into(), (*value).into())))
    }

    /// Each of them by name, so that none disappears from the key unnoticed.
    #[test]
    fn every_variable_that_counts_is_a_part() {
        let names = [
            "XLA_FLAGS",
            "XLA_ANYTHING",
            "TF_XLA_FLAGS",
            "LIBTPU_INIT_ARGS",
            "PJRT_NPROC",
            "NPROC",
            "OMP_NUM_THREADS",
            "NVIDIA_TF32_OVERRIDE",
            "ONEDNN_MAX_CPU_ISA",
            "DNNL_MAX_CPU_ISA",
            "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT",
            "CUBLAS_WORKSPACE_CONFIG",
            "TF_CUDNN_USE_FRONTEND",
            "TF_CUBLAS_WORKSPACE_CONFIG",
        ];
        for name in names {
            let parts = |value| of(&[(name, value), ("HOME", "/h")]).expect("no file").parts();
            assert_eq!(parts("a b"), [(format!("variable {name}"), "a b".to_owned())]);
            assert_ne!(parts("a"), parts("b"));
        }
        assert_eq!(of(&[("HOME", "/h"), ("NOXLA_FLAGS", "x"), ("TF_OTHER", "y")]), Ok(Variables::default()));
        let order = [("XLA_FLAGS", "x"), ("NPROC", "2")];
        assert_eq!(of(&order), of(&[order[1], order[0]]));
    }

    #[test]
    fn values_that_are_no_text_are_told_apart() {
        let parts = |byte| {
            let value = OsStr::from_bytes(&[b'-', byte]).to_owned();
            Variables::of([("XLA_FLAGS".into(), value)]).expect("no file").parts()
        };
        assert_ne!(parts(0xfe), parts(0xff));
    }

    /// However a value names a file, its contents are a part.
    #[test]
    fn what_is_in_a_file_that_a_variable_names_is_a_part() {
        let folder = tempfile::tempdir().expect("a folder");
        let (one, other) = (folder.path().join("flags file"), folder.path().join("other"));
        let path = one.to_str().expect("UTF-8");
        let plain = other.to_str().expect("UTF-8");
        let values = [
            path.to_owned(),
            format!("--flagfile='{path}'"),
            format!("--a=1 --b=\"{path}\" --c"),
            format!("--flagfile={plain}"),
            format!("--x=1,{plain}"),
        ];
        for value in values {
            for name in ["XLA_FLAGS", "TF_XLA_FLAGS", "LIBTPU_INIT_ARGS"] {
                let with = |text: &str| {
                    std::fs::write(&one, text).expect("written");
                    std::fs::write(&other, text).expect("written");
                    of(&[(name, &value)]).expect("files")
                };
                let (first, second) = (with("--xla_a=1"), with("--xla_a=2"));
                assert_eq!(first.values, second.values);
                assert_ne!(first.parts(), second.parts(), "{value}");
                assert_eq!(with("--xla_a=1"), first);
            }
        }
        // Also through another file.
        std::fs::write(&one, format!("--flagfile={plain}")).expect("written");
        let with = |text: &str| {
            std::fs::write(&other, text).expect("written");
            of(&[("LIBTPU_INIT_ARGS", path)]).expect("files").parts()
        };
        assert_ne!(with("a"), with("b"));
        // And in a folder, unless the compiler writes to it.
        let within = |flag: &str, name: &str| {
            std::fs::write(folder.path().join(name), "x").expect("written");
            of(&[("XLA_FLAGS", &format!("{flag}={}", folder.path().display()))]).expect("files").parts()
        };
        assert_ne!(within("--xla_data_dir", "1"), within("--xla_data_dir", "2"));
        assert_eq!(within("--xla_dump_to", "3"), within("--xla_dump_to", "4"));
    }

    /// An unknown state is reported, and nothing waits for it.
    #[test]
    fn what_cannot_be_read_is_not_known() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        let (at, mode) = (rustix::fs::CWD, rustix::fs::Mode::RUSR);
        rustix::fs::mknodat(at, &pipe, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
        for value in
            [pipe.display().to_string(), format!("--flagfile={}", pipe.display()), "/dev/zero".to_owned()]
        {
            let error = of(&[("XLA_FLAGS", &value)]).expect_err("it has no contents");
            assert!(error.contains("XLA_FLAGS names") && error.contains("regular"), "{error}");
        }
        let large = folder.path().join("large");
        File::create(&large).and_then(|file| file.set_len((64 << 20) + 1)).expect("a file of nothing");
        assert!(of(&[("XLA_FLAGS", &large.display().to_string())]).is_err());
        assert!(of(&[("XLA_FLAGS", "/dev/null")]).is_ok());
        assert!(
            of(&[("XLA_FLAGS", "--xla_flags_reset=true")])
                .is_ok_and(|variables| variables.files.are_flags_read_anew())
        );
    }

    #[test]
    fn what_was_written_to_is_not_what_was_mapped() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("library");
        let loaded = || {
            std::fs::write(&path, "first").expect("written");
            Loading::begin(&path).expect("a file").end(&path)
        };
        let first = blake3::hash(b"first");
        let origin = loaded();
        assert_eq!(origin.digest(), Ok(first));
        let identity = origin.identity().expect("known");
        // Another file in its place.
        std::fs::write(folder.path().join("new"), "second").expect("written");
        std::fs::rename(folder.path().join("new"), &path).expect("renamed");
        assert_eq!((origin.digest(), origin.identity()), (Ok(first), Ok(identity)));
        let origin = loaded();
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(origin.digest(), Ok(first));
        // As package managers do that share files.
        let origin = loaded();
        std::fs::hard_link(&path, folder.path().join("shared")).expect("linked");
        assert_eq!(origin.digest(), Ok(first));
        std::fs::remove_file(&path).expect("removed");
        std::fs::remove_file(folder.path().join("shared")).expect("removed");
        assert_eq!(origin.digest(), Ok(first));
        // The same file with other contents of the same length.
        let origin = loaded();
        std::fs::write(&path, "other").expect("written");
        // Within the resolution of the file system's clock the time would be the same.
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
        File::options().write(true).open(&path).and_then(|file| file.set_modified(later)).expect("set");
        assert!(origin.digest().is_err() && origin.identity().is_err() && origin.variables().is_err());
        // With its old modification time too, as some tools write; nobody can set the change time.
        let origin = loaded();
        let before = std::fs::metadata(&path).expect("a file");
        std::fs::write(&path, "third").expect("written");
        let file = File::options().write(true).open(&path).expect("opened");
        while std::fs::metadata(&path).expect("a file").ctime_nsec() == before.ctime_nsec() {
            file.set_modified(before.modified().expect("a time")).expect("set");
        }
        file.set_modified(before.modified().expect("a time")).expect("set");
        assert!(origin.digest().is_err());
        // Replaced between the two calls.
        let loading = Loading::begin(&path).expect("a file");
        std::fs::write(folder.path().join("new"), "second").expect("written");
        std::fs::rename(folder.path().join("new"), &path).expect("renamed");
        assert!(loading.end(&path).digest().is_err_and(|why| why.contains("while it was loaded")));
    }

    #[test]
    fn a_library_that_was_there_before_is_known_by_what_is_mapped() {
        let program = std::env::current_exe().expect("this program");
        let here = a_library_that_was_there_before_is_known_by_what_is_mapped as fn() as usize;
        let loading = || Loading::begin(&program).expect("a file");
        assert!(loading().end_of_loaded(&program, here).digest().is_ok());
        // The stack is in no file.
        let local = 0u8;
        let stack = (&raw const local).addr();
        assert!(loading().end_of_loaded(&program, stack).digest().is_err());
    }
}
