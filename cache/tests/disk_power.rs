//! Power cuts: data without a sync may be there in part, in any order, or not at all. It is
//! accepted only if it is whole.
//!
//! The test records the calls of a history. Then it makes every state in which a disk might be
//! left: any subset of the renames without a sync; of the bytes without a sync any prefix, or any
//! subset of their 512-byte blocks, with zeros or garbage in the rest.
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test, on real threads")]

mod support;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fuseline_cache::disk::{DiskConfig, Files, Stat, System};
use fuseline_cache::{Name, Record};

use support::{Root, version};

const BLOCK: usize = 512;

type Id = (u64, u64);

/// A change on the disk.
#[derive(Clone, Debug)]
enum Change {
    Write {
        file: Id,
        bytes: Vec<u8>,
    },
    /// A file got a name in a folder.
    Name {
        dir: Id,
        name: String,
        file: Id,
    },
    /// The contents of a file, or the names in a folder, are synced.
    Sync {
        of: Id,
    },
}

#[derive(Debug, Default)]
struct Recorder(Mutex<Vec<Change>>);

impl Recorder {
    fn add(&self, change: Change) {
        self.0.lock().unwrap().push(change);
    }

    fn id(&self, fd: &OwnedFd) -> Id {
        System.stat(fd).unwrap().identity
    }

    fn named(&self, dir: &OwnedFd, name: &str) {
        let file = System.stat_at(dir, name).unwrap().identity;
        self.add(Change::Name { dir: self.id(dir), name: name.to_owned(), file });
    }
}

impl Files for Recorder {
    fn user(&self) -> u32 {
        System.user()
    }
    fn open_root(&self, path: &Path) -> io::Result<OwnedFd> {
        System.open_root(path)
    }
    fn make_root(&self, path: &Path) -> io::Result<()> {
        System.make_root(path)
    }
    fn open_dir(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        System.open_dir(at, name)
    }
    fn make_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        System.make_dir(at, name)
    }
    fn set_mode(&self, fd: &OwnedFd, mode: u32) -> io::Result<()> {
        System.set_mode(fd, mode)
    }
    fn create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        System.create(at, name)
    }
    fn open_or_create(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        System.open_or_create(at, name)
    }
    fn open(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        System.open(at, name)
    }
    fn open_to_lock(&self, at: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
        System.open_to_lock(at, name)
    }
    fn stat(&self, fd: &OwnedFd) -> io::Result<Stat> {
        System.stat(fd)
    }
    fn stat_link(&self, path: &Path) -> io::Result<Stat> {
        System.stat_link(path)
    }

    fn read_link(&self, path: &Path) -> io::Result<(PathBuf, Stat)> {
        System.read_link(path)
    }
    fn stat_at(&self, at: &OwnedFd, name: &str) -> io::Result<Stat> {
        System.stat_at(at, name)
    }
    fn read(&self, fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
        System.read(fd, into)
    }
    fn write(&self, fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        // In two parts, so that there is a moment between them.
        let part = bytes.len().div_ceil(2).max(BLOCK).min(bytes.len());
        let written = System.write(fd, &bytes[..part])?;
        self.add(Change::Write { file: self.id(fd), bytes: bytes[..written].to_vec() });
        Ok(written)
    }
    fn write_at(&self, fd: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()> {
        System.write_at(fd, bytes, offset)
    }
    fn sync(&self, fd: &OwnedFd) -> io::Result<()> {
        self.add(Change::Sync { of: self.id(fd) });
        Ok(())
    }
    fn rename(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()> {
        System.rename(from, to)?;
        self.named(to.0, to.1);
        Ok(())
    }
    fn link(&self, from: (&OwnedFd, &str), to: (&OwnedFd, &str)) -> io::Result<()> {
        System.link(from, to)?;
        self.named(to.0, to.1);
        Ok(())
    }
    fn unlink(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        System.unlink(at, name)
    }
    fn remove_dir(&self, at: &OwnedFd, name: &str) -> io::Result<()> {
        System.remove_dir(at, name)
    }
    fn list(&self, dir: &OwnedFd) -> io::Result<Vec<String>> {
        System.list(dir)
    }
    fn touch(&self, fd: &OwnedFd) -> io::Result<()> {
        System.touch(fd)
    }
    fn try_lock(&self, fd: &OwnedFd) -> io::Result<bool> {
        System.try_lock(fd)
    }
}

/// The possible remains of bytes whose first `kept` are synced.
fn remains(bytes: &[u8], kept: usize) -> HashSet<Vec<u8>> {
    let mut all = HashSet::from([bytes.to_vec()]);
    if kept == bytes.len() {
        return all;
    }
    let blocks = bytes.len().div_ceil(BLOCK);
    let range = |block: usize| (block * BLOCK).max(kept)..((block + 1) * BLOCK).min(bytes.len()).max(kept);
    for lost in 0..1u32 << blocks {
        for filler in [0, 0xa5] {
            let mut left = bytes.to_vec();
            for block in (0..blocks).filter(|block| lost & (1 << block) != 0) {
                left[range(block)].fill(filler);
            }
            all.insert(left);
        }
    }
    all.extend((0..=blocks).map(|blocks| bytes[..(blocks * BLOCK).min(bytes.len()).max(kept)].to_vec()));
    all
}

/// The names in a folder with the contents of their files.
type State = Vec<(String, Vec<u8>)>;

/// All states in which a folder may be after these changes and a power cut.
fn states(changes: &[Change], folder: Id) -> HashSet<State> {
    let (mut bytes, mut kept) = (HashMap::<Id, Vec<u8>>::new(), HashMap::<Id, usize>::new());
    // Names in order, and how many of them are certainly on the disk.
    let (mut names, mut sure) = (Vec::new(), 0);
    for change in changes {
        match change {
            Change::Write { file, bytes: more } => bytes.entry(*file).or_default().extend(more),
            Change::Sync { of } if *of == folder => sure = names.len(),
            Change::Sync { of } => drop(kept.insert(*of, bytes.get(of).map_or(0, Vec::len))),
            Change::Name { dir, name, file } if *dir == folder => names.push((name.clone(), *file)),
            Change::Name { .. } => {}
        }
    }
    let mut all = HashSet::new();
    for happened in 0..1u32 << (names.len() - sure) {
        let there = |at: usize| at < sure || happened & (1 << (at - sure)) != 0;
        let mut files = HashMap::new();
        names.iter().enumerate().filter(|(at, _)| there(*at)).for_each(|(_, (name, file))| {
            files.insert(name.clone(), *file);
        });
        let mut files: Vec<(String, Id)> = files.into_iter().collect();
        files.sort();
        let mut partial = vec![State::new()];
        for (name, file) in files {
            let bytes = bytes.get(&file).cloned().unwrap_or_default();
            let remains = remains(&bytes, kept.get(&file).copied().unwrap_or(0));
            let with = |state: &State| {
                let one = |left: &Vec<u8>| [&state[..], &[(name.clone(), left.clone())]].concat();
                remains.iter().map(one).collect::<Vec<State>>()
            };
            partial = partial.iter().flat_map(with).collect();
        }
        all.extend(partial);
    }
    all
}

/// Three stores, two of them under one name. Returns the number of states.
fn cut_the_power(sync: bool) -> usize {
    let history = [version("a", 1, 900), version("a", 2, 1300), version("b", 3, 1800)];
    let (root, files) = (Root::in_memory(), Arc::new(Recorder::default()));
    let cache = root.open_on(files.clone(), DiskConfig { sync, ..root.given() }).unwrap();
    // The number of changes when each of them was reported as stored.
    let mut stored = Vec::new();
    for record in &history {
        assert!(cache.store(record));
        stored.push(files.0.lock().unwrap().len());
    }
    drop(cache);
    let changes = files.0.lock().unwrap().clone();
    let folder = System.open_root(&root.folder("entries")).unwrap();
    let folder = System.stat(&folder).unwrap().identity;

    let after = Root::in_memory();
    let cache = after.open_given();
    let (mut seen, mut accepted, mut refused) = (0, 0, 0);
    for end in 0..=changes.len() {
        for state in states(&changes[..end], folder) {
            seen += 1;
            for name in after.list("entries") {
                fs::remove_file(after.folder("entries").join(name)).unwrap();
            }
            for (name, bytes) in &state {
                fs::write(after.folder("entries").join(name), bytes).unwrap();
            }
            for (request, versions) in [("a", &history[..2]), ("b", &history[2..])] {
                let record: &Record = &versions[0];
                let found = cache.load(&record.request()).found();
                assert!(found.as_ref().is_none_or(|found| versions.contains(found)), "{request}: {found:?}");
                let is_sure = |at: usize| sync && stored[at] <= end;
                match request {
                    "a" if is_sure(1) => assert_eq!(found.as_ref(), Some(&history[1]), "lost"),
                    "a" if is_sure(0) => assert!(found.is_some(), "lost"),
                    "b" if is_sure(2) => assert!(found.is_some(), "lost"),
                    _ => {}
                }
                let is_named = state.iter().any(|(name, _)| *name == Name::to_string(&record.name()));
                match found {
                    Some(_) => accepted += 1,
                    None if is_named => refused += 1,
                    None => {}
                }
                // The store repairs it.
                assert!(cache.store(record), "{:?}", after.log.take());
                assert_eq!(cache.load(&record.request()).found().as_ref(), Some(record));
            }
        }
    }
    // Both kinds occurred.
    assert!(accepted > 0 && (sync || refused > 0), "{accepted} {refused}");
    assert!(!sync || refused == 0, "with `sync` nothing is there in part: {refused}");
    seen
}

#[test]
fn nothing_is_believed_that_a_power_cut_left_in_part() {
    let seen = cut_the_power(false);
    assert!(seen > 1000, "{seen}: fewer states than there are");
}

#[test]
fn what_was_waited_for_is_there_after_a_power_cut() {
    cut_the_power(true);
}

/// A secret of zeros would be known to everybody: it is there whole or not at all.
#[test]
fn a_secret_is_whole_after_a_power_cut() {
    let (root, files) = (Root::in_memory(), Arc::new(Recorder::default()));
    drop(root.open_on(files.clone(), root.config()).unwrap());
    let changes = files.0.lock().unwrap().clone();
    let folder = System.open_root(root.key().parent().unwrap()).unwrap();
    let folder = System.stat(&folder).unwrap().identity;
    let whole = fs::read(root.key()).unwrap();
    let mut seen = HashSet::new();
    for end in 0..=changes.len() {
        for state in states(&changes[..end], folder) {
            assert!(state.is_empty() || state == [("cache.key".to_owned(), whole.clone())], "{state:?}");
            seen.insert(state);
        }
    }
    assert_eq!(seen.len(), 2);
}
