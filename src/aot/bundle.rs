//! Bundles carry entries from one machine to another one like it.
//!
//! ```text
//! offset  size
//!      0     8  magic
//!      8     4  number of entries
//!     12        for each: length (8), name (32), the entry, sealed with the bundle's key
//! ```
//!
//! Numbers are little-endian. The secret of a user never leaves the machine. A bundle has its own
//! key, which both sides share, and imported entries are sealed again with the secret of the
//! importing user. Whoever has the key of a bundle can make one that executes any code.
//!
//! Input: a folder, and a key. Output: a file; or entries in the folder. Invariants:
//! - Nothing is imported from a bundle with any error. After a wrong header nothing more of its
//!   entry is read.
//! - Only executables with requests of this build and notes of environments are imported. A valid
//!   entry that exists stays.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use fuseline_cache::disk::Output;
use fuseline_cache::{HEADER, Name, Record, SealedKind, Sealer, Secret, announced, disk};
use fuseline_fusion::Bytes;
use fuseline_runtime::internals::{Recipe, StoreEnvironment};
use fuseline_runtime::{Error, Result};

use super::inspect::{EntryFile, Folder};

const MAGIC: [u8; 8] = *b"FUSEBNDL";

/// Maximum number of entries of a bundle.
const MAX_ENTRIES: u32 = 1_000_000;

/// Purpose of the derived key. It differs from that of a folder, even if both are given the same
/// bytes.
const KEY: &str = "fuseline cache 2026-11 key of bundles, format 1";

/// The key that a bundle is sealed with.
#[derive(Clone)]
pub struct BundleKey(Sealer);

impl BundleKey {
    /// Derives a key from 32 bytes, which should be random.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> BundleKey {
        BundleKey(Sealer::new(&Secret::new(blake3::derive_key(KEY, key))))
    }

    /// Reads a key: a file of 32 bytes to which only its owner has access (see
    /// [`read_key`](disk::read_key)).
    ///
    /// # Errors
    /// When the file is not such a key.
    pub fn read(path: impl AsRef<Path>) -> Result<BundleKey> {
        disk::read_key(path.as_ref())
            .map(|key| BundleKey::new(&key))
            .map_err(|off| Error::setup(off.to_string()))
    }

    /// Creates a key of random bytes in a new file.
    ///
    /// # Errors
    /// When the file exists, or cannot be written.
    pub fn make(path: impl AsRef<Path>) -> Result<BundleKey> {
        let path = path.as_ref();
        let failed =
            |error: std::io::Error| Error::setup(format!("{} cannot be written: {error}", path.display()));
        let key = disk::random_key().map_err(failed)?;
        let path = &disk::resolve_new(path).map_err(failed)?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
        Output::new(file).write_all(&key).map_err(|error| {
            // A partial key is useless and would block the next attempt.
            drop(std::fs::remove_file(path));
            failed(error)
        })?;
        Ok(BundleKey::new(&key))
    }
}

impl std::fmt::Debug for BundleKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BundleKey(..)")
    }
}

/// The result of an export.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exported {
    /// Number of executables.
    pub executables: usize,
    /// Number of their environments.
    pub environments: usize,
    /// Size of the bundle.
    pub bytes: Bytes,
}

/// The result of an import.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// Executables that were added.
    pub added: usize,
    /// Executables that already existed.
    pub present: usize,
    /// Environments that were added.
    pub environments: usize,
}

/// Writes executables to a bundle. `files` are those of a folder. Entries that are no executables
/// are left out.
///
/// # Errors
/// When an entry is damaged, or the file cannot be written.
pub fn export(
    folder: &Folder,
    files: &[EntryFile],
    key: &BundleKey,
    path: impl AsRef<Path>,
) -> Result<Exported> {
    let path = path.as_ref();
    let failed =
        |error: std::io::Error| Error::setup(format!("{} cannot be written: {error}", path.display()));
    let read = |name: &Name| {
        folder.disk.open_entry(name).map_err(|unusable| {
            Error::setup(format!(
                "entry {name} cannot be exported: {unusable}; run `fuseline cache verify` for details"
            ))
        })
    };
    let mut exported = Exported::default();
    let mut environments = BTreeSet::new();
    let path = &disk::resolve_new(path).map_err(failed)?;
    let (partial, file) = create_beside(path).map_err(failed)?;
    let mut file = Output::new(file);
    let written = (|| {
        let mut out = BufWriter::new(&mut file);
        out.write_all(&MAGIC).map_err(failed)?;
        // Placeholder for the number of entries.
        out.write_all(&[0; 4]).map_err(failed)?;
        let mut put = |record: &Record| {
            let bytes = key.0.seal(record);
            out.write_all(&(bytes.len() as u64).to_le_bytes()).map_err(failed)?;
            out.write_all(record.name().as_bytes()).map_err(failed)?;
            out.write_all(&bytes).map_err(failed)
        };
        for file in files {
            let Some(record) = read(&file.name)?.filter(|record| record.kind == SealedKind::Artifact) else {
                continue;
            };
            put(&record)?;
            environments.insert(record.environment);
            exported.executables += 1;
        }
        for environment in environments {
            if let Some(record) = read(&StoreEnvironment::request(environment).name())? {
                put(&record)?;
                exported.environments += 1;
            }
        }
        let count = u32::try_from(exported.executables + exported.environments)
            .ok()
            .filter(|&count| count <= MAX_ENTRIES)
            .ok_or_else(|| Error::setup(format!("a bundle has at most {MAX_ENTRIES} entries")))?;
        out.flush().map_err(failed)?;
        drop(out);
        let file = file.file();
        std::os::unix::fs::FileExt::write_all_at(file, &count.to_le_bytes(), MAGIC.len() as u64)
            .map_err(failed)?;
        exported.bytes = Bytes(file.metadata().map_err(failed)?.len());
        std::fs::rename(&partial, path).map_err(failed)
    })();
    if written.is_err() {
        drop(std::fs::remove_file(&partial));
    }
    written.map(|()| exported)
}

/// Creates a file under a temporary name, which must be new: a link that somebody else placed is
/// not followed.
fn create_beside(path: &Path) -> std::io::Result<(PathBuf, File)> {
    let name = path.file_name().ok_or(std::io::ErrorKind::IsADirectory)?;
    let random = Name::new(disk::random_key()?).to_string();
    let mut other = name.to_owned();
    other.push(format!(".{}.partial", &random[..16]));
    let other = path.with_file_name(other);
    let file = OpenOptions::new().write(true).create_new(true).open(&other)?;
    Ok((other, file))
}

/// Adds the entries of a bundle to a folder.
///
/// # Errors
/// When anything is wrong with the bundle, or it was sealed with another key; then nothing was
/// added. When an entry cannot be stored.
pub fn import(folder: &Folder, key: &BundleKey, path: impl AsRef<Path>) -> Result<Imported> {
    let path = path.as_ref();
    // The first pass checks everything; the second checks again and imports.
    let most = folder.disk.config().max_bytes;
    each(key, path, most, |_| Ok(()))?;
    let mut imported = Imported::default();
    each(key, path, most, |record| {
        let name = record.name();
        let is_note = record.kind == SealedKind::Note;
        if folder.disk.open_entry(&name).is_ok_and(|there| there.is_some()) {
            imported.present += usize::from(!is_note);
            return Ok(());
        }
        if !folder.disk.store(&record) {
            return Err(format!("it cannot be stored in {}", folder.path().display()));
        }
        imported.added += usize::from(!is_note);
        imported.environments += usize::from(is_note);
        Ok(())
    })?;
    Ok(imported)
}

/// Reads a bundle and checks each entry. `most` is the maximum size of an entry.
fn each(
    key: &BundleKey,
    path: &Path,
    most: u64,
    mut take: impl FnMut(Record) -> std::result::Result<(), String>,
) -> Result<()> {
    let wrong = |why: String| Error::setup(format!("cannot import {}: {why}", path.display()));
    let (file, mut left) = disk::open_given(path).map_err(|error| wrong(error.to_string()))?;
    let mut input = BufReader::new(file);
    let cut_off = || wrong("the file is truncated".to_owned());
    let mut bytes = |len: u64| {
        left = left.checked_sub(len).ok_or_else(cut_off)?;
        let mut bytes = Vec::new();
        let read =
            input.by_ref().take(len).read_to_end(&mut bytes).map_err(|error| wrong(error.to_string()))?;
        if read as u64 == len { Ok((bytes, left)) } else { Err(cut_off()) }
    };
    if bytes(8)?.0 != MAGIC {
        return Err(wrong("it is not a bundle written by `fuseline cache export`".to_owned()));
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte));
    let count = number(&bytes(4)?.0);
    if count > u64::from(MAX_ENTRIES) {
        return Err(wrong(format!(
            "a bundle has at most {MAX_ENTRIES} entries, but its header announces {count}"
        )));
    }
    for place in 1..=count {
        let wrong = |why: &str| wrong(format!("entry {place} of {count}: {why}"));
        let len = number(&bytes(8)?.0);
        let name = Name::new(bytes(32)?.0.try_into().map_err(|_| cut_off())?);
        let mut sealed = bytes(HEADER as u64)?.0;
        // Nothing is read beyond the size that the entry announces, and no entry that would not
        // fit.
        let announced = announced(&name, &sealed).map_err(|damage| wrong(&damage.to_string()))?;
        if announced != len {
            return Err(wrong("its length differs from the length in its header"));
        }
        if len > most {
            return Err(wrong(&format!("its {len} bytes exceed the size limit of the cache, {most} bytes")));
        }
        sealed.extend(bytes(len - HEADER as u64)?.0);
        let opened = key.0.open(&name, sealed);
        let record = opened.map_err(|damage| {
            wrong(&format!("{damage}; check that the key is the one that the bundle was exported with"))
        })?;
        check(&record).map_err(|why| wrong(&why))?;
        take(record).map_err(|why| wrong(&why))?;
    }
    // This also holds for a bundle without entries.
    let (_, rest) = bytes(0)?;
    if rest > 0 {
        return Err(wrong(format!("{rest} bytes follow the last entry")));
    }
    Ok(())
}

/// Checks that a bundle may contain an entry.
fn check(record: &Record) -> std::result::Result<(), String> {
    match record.kind {
        SealedKind::Artifact => Recipe::decode(&record.request).map(drop),
        SealedKind::Note => match StoreEnvironment::of_note(record) {
            Some(environment)
                if environment.fingerprint() == record.environment
                    && StoreEnvironment::request(record.environment) == record.request() =>
            {
                Ok(())
            }
            _ => Err("it is a note that does not describe an environment".to_owned()),
        },
        SealedKind::NotWorthIt => Err("it is not an executable".to_owned()),
    }
}
