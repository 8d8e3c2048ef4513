//! A damaged entry on the disk, whatever the damage, is a miss, is reported and removed, and the
//! next store replaces it (DISK-1, DISK-2, DISK-7).
#![allow(clippy::unwrap_used, clippy::disallowed_types, reason = "a test, on real threads")]

mod support;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fuseline_cache::disk::{DiskCache, DiskConfig};
use fuseline_cache::{Damage, FORMAT, Fingerprint, Key, MAX_ENTRY, Name, Record, SealedKind, Sealer, Secret};

use support::faulty::{Call, Faulty, Plan};
use support::{Random, Root, is_there, record, sealer, version};

/// Offsets of the header's fields; see `sealed.rs`.
const FORMAT_AT: usize = 8;
const KIND_AT: usize = 10;
const NAME_AT: usize = 16;
const LENS_AT: usize = 128;
const MAC_AT: usize = 144;
const HEADER: usize = 176;

/// A tier with one entry, which is damaged.
struct Victim {
    root: Root,
    cache: DiskCache,
    record: Record,
    bytes: Vec<u8>,
}

impl Victim {
    fn new(record: Record) -> Victim {
        let root = Root::new();
        let cache = root.open_given();
        assert!(cache.store(&record));
        let bytes = fs::read(root.entry(&record.name())).unwrap();
        assert_eq!(bytes, sealer().seal(&record));
        Victim { root, cache, record, bytes }
    }

    /// Damages the file. Its entry must be refused, for a reason with these words, and be replaced.
    fn suffers(&self, what: &str, why: &str, damage: impl FnOnce(&Path)) {
        let (name, path) = (self.record.name(), self.root.entry(&self.record.name()));
        damage(&path);
        let before = self.cache.stats();
        assert_eq!(self.cache.load(&self.record.request()).found(), None, "{what}: accepted");
        let told = self.root.log.take();
        assert_eq!(told.len(), 1, "{what}: {told:?}");
        assert!(
            told[0].starts_with(&format!("damaged: {name}: ")) && told[0].contains(why),
            "{what}: {told:?}"
        );
        assert!(!is_there(&path), "{what}: it stayed");
        assert!(!self.cache.may_have(&name), "{what}");
        let after = self.cache.stats();
        assert_eq!((after.damaged, after.misses), (before.damaged + 1, before.misses + 1), "{what}");
        assert!(self.cache.store(&self.record), "{what}: not healed");
        assert_eq!(self.cache.load(&self.record.request()).found().as_ref(), Some(&self.record), "{what}");
        self.root.assert_quiet();
    }

    /// The same with other bytes in the file.
    fn reads(&self, what: &str, why: &str, bytes: &[u8]) {
        self.suffers(what, why, |path| fs::write(path, bytes).unwrap());
    }
}

#[test]
fn every_bit_of_an_entry_counts() {
    let victim = Victim::new(version("a", 3, 40));
    for bit in 0..victim.bytes.len() * 8 {
        victim.suffers(&format!("bit {bit}"), "", |path| {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.write_all_at(&[victim.bytes[bit / 8] ^ (1 << (bit % 8))], bit as u64 / 8).unwrap();
        });
    }
}

#[test]
fn an_entry_that_was_cut_off_anywhere_is_refused() {
    let victim = Victim::new(version("a", 3, 40));
    for len in 0..victim.bytes.len() {
        let why = if len < HEADER { "truncated" } else { "length" };
        victim.suffers(&format!("{len} bytes"), why, |path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len as u64).unwrap();
        });
    }
    for tail in [1, 2, 511, 512, 4096, 1 << 20] {
        for filler in [0, 0xa5] {
            let bytes = [&victim.bytes[..], &vec![filler; tail]].concat();
            victim.reads(&format!("{tail} more"), "length", &bytes);
        }
    }
}

/// Kinds of damage of a large entry: changed bytes, zeroed blocks, moved blocks, truncation, a
/// tail.
fn damages_of_a_large_entry(times: usize, seed: u64) {
    let victim = Victim::new(version("large", 1, 1 << 20));
    let mut random = Random::new(seed);
    for time in 0..times {
        let mut bytes = victim.bytes.clone();
        let at = random.below(bytes.len());
        let block = [1, 16, 512, 4096, 65536][random.below(5)].min(bytes.len() - at);
        match random.below(5) {
            0 => {
                for _ in 0..=random.below(16) {
                    let at = random.below(bytes.len());
                    bytes[at] ^= 1 + random.below(255) as u8;
                }
            }
            1 => bytes[at..at + block].fill(0),
            2 => {
                let from = random.below(bytes.len() - block + 1);
                bytes.copy_within(from..from + block, at);
            }
            3 => bytes.truncate(at),
            _ => bytes.extend((0..block).map(|_| random.next() as u8)),
        }
        if bytes != victim.bytes {
            victim.reads(&format!("damage {time} of seed {seed}"), "", &bytes);
        }
    }
}

/// 500 here; 10,000 in the long version.
#[test]
fn random_damage_of_a_large_entry_is_found() {
    damages_of_a_large_entry(500, 1);
}

/// `cargo test -p fuseline-cache --test disk_damage -- --ignored much`, some minutes.
#[test]
#[ignore = "soak: `cargo xtask soak disk-damage`"]
fn much_random_damage_of_a_large_entry_is_found() {
    damages_of_a_large_entry(10_000, 2);
}

/// Even with a valid MAC, the header is checked.
#[test]
fn a_forged_header_is_refused() {
    let victim = Victim::new(record("a"));
    let forged = |at: usize, field: &[u8]| {
        let mut bytes = victim.bytes.clone();
        bytes[at..at + field.len()].copy_from_slice(field);
        sealer().reseal(&mut bytes);
        bytes
    };
    let lens = |request: u64, artifact: u64| {
        forged(LENS_AT, &[request.to_le_bytes(), artifact.to_le_bytes()].concat())
    };
    let (request, artifact) = (victim.record.request.len() as u64, victim.record.artifact.len() as u64);
    for (one, other) in [
        (1 << 62, 1 << 62),
        (u64::MAX, request + artifact + 1),
        (u64::MAX, u64::MAX),
        (4 << 30, 0),
        (0, 4 << 30),
        (1 << 63, 1 << 63),
    ] {
        victim.reads(&format!("lengths {one} and {other}"), "length", &lens(one, other));
    }
    // Another boundary between the two makes it the answer to another request.
    victim.reads("border", "another name", &lens(request + 1, artifact - 1));
    victim.reads("all request", "another name", &lens(request + artifact, 0));
    for kind in (0..=255).filter(|kind| !(1..=3).contains(kind)) {
        victim.reads(&format!("kind {kind}"), "not a cache entry", &forged(KIND_AT, &[kind]));
    }
    victim.reads("the byte of zero", "not a cache entry", &forged(KIND_AT + 1, &[1]));
    for format in [0, FORMAT + 1, u16::MAX] {
        let why = format!("format {format}");
        victim.reads(&why, &why, &forged(FORMAT_AT, &format.to_le_bytes()));
    }
    for header in [0, HEADER as u32 - 1, u32::MAX] {
        victim.reads(&format!("header of {header}"), "length", &forged(12, &header.to_le_bytes()));
    }
    let other = record("b").name();
    victim.reads("another name", "another name", &forged(NAME_AT, other.as_bytes()));
    // From another environment, under the name of this one.
    victim.reads("environment", "another name", &forged(48, Fingerprint::of(b"there").as_bytes()));
    victim.reads("region", "another name", &forged(80, &[9; 32]));
}

/// A wrong length costs no memory: the file is not even read.
#[test]
fn what_is_larger_than_any_entry_is_not_read() {
    let victim = Victim::new(record("a"));
    for len in [MAX_ENTRY + 1, 4 << 30, 1 << 40] {
        let before = victim.cache.stats().bytes_read;
        victim.suffers(&format!("{len} bytes"), "larger than any entry", |path| {
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
        });
        assert_eq!(victim.cache.stats().bytes_read - before, victim.bytes.len() as u64, "{len}");
    }
}

/// Nor is a sparse file, or one that is larger than all entries together may be.
#[test]
fn what_a_header_does_not_announce_is_not_read() {
    let victim = Victim::new(record("a"));
    let set_len =
        |path: &Path, len| fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    let all_zeros = |path: &Path| {
        fs::write(path, "").unwrap();
        set_len(path, MAX_ENTRY);
    };
    let other = sealer().seal(&record("b"));
    type Row<'a> = (&'a str, &'a dyn Fn(&Path));
    let rows: [Row<'_>; 3] = [
        ("not a cache entry", &all_zeros),
        ("its length differs", &|path| set_len(path, MAX_ENTRY)),
        ("another name", &|path| {
            fs::write(path, &other).unwrap();
            set_len(path, MAX_ENTRY);
        }),
    ];
    for (why, put) in rows {
        let reads = Arc::new(AtomicUsize::new(0));
        let files = Faulty::new(Plan::Works);
        let counted = reads.clone();
        files.before(move |call| {
            counted.fetch_add(usize::from(call == Call::Read), Ordering::SeqCst);
        });
        let cache = victim.root.open_on(files, victim.root.given()).unwrap();
        reads.store(0, Ordering::SeqCst);
        put(&victim.root.entry(&victim.record.name()));
        assert_eq!(cache.load(&victim.record.request()).found(), None);
        assert_eq!(reads.load(Ordering::SeqCst), 1, "{why}: more than its header was read");
        assert!(victim.root.log.take()[0].contains(why));
        assert_eq!(cache.stats().bytes_read, 0);
        assert!(victim.cache.store(&victim.record));
    }
    let small = DiskConfig { max_bytes: 100, ..victim.root.given() };
    let cache = victim.root.open_with(small).unwrap();
    assert_eq!(cache.load(&victim.record.request()).found(), None);
    assert!(victim.root.log.take()[0].contains("larger than the size limit"));
}

/// A place of the disk that cannot be read is a miss, and the next store uses another place.
#[test]
fn what_cannot_be_read_is_stored_anew() {
    let victim = Victim::new(record("a"));
    let files = Faulty::new(Plan::Works);
    let cache = victim.root.open_on(files.clone(), victim.root.given()).unwrap();
    assert!(cache.may_have(&victim.record.name()));
    files.plan(Plan::SealedKind(Call::Read, rustix::io::Errno::IO));
    assert_eq!(cache.load(&victim.record.request()).found(), None);
    assert!(!cache.may_have(&victim.record.name()), "nobody would store it");
    files.plan(Plan::Works);
    assert_eq!(cache.load(&victim.record.request()).found().as_ref(), Some(&victim.record));
}

#[test]
fn entries_do_not_change_places() {
    let root = Root::new();
    let cache = root.open();
    let (a, b) = (record("a"), record("b"));
    assert!(cache.store(&a) && cache.store(&b));
    let (at_a, at_b, aside) = (root.entry(&a.name()), root.entry(&b.name()), root.path().join("aside"));
    fs::rename(&at_a, &aside).unwrap();
    fs::rename(&at_b, &at_a).unwrap();
    fs::rename(&aside, &at_b).unwrap();
    for record in [&a, &b] {
        assert_eq!(cache.load(&record.request()).found(), None);
        let told = root.log.take();
        assert!(told.len() == 1 && told[0].contains("another name"), "{told:?}");
        assert!(cache.store(record));
        assert_eq!(cache.load(&record.request()).found().as_ref(), Some(record));
    }
}

/// A copy of a cache folder is useless without its secret.
#[test]
fn what_another_secret_sealed_is_refused() {
    let victim = Victim::new(record("a"));
    let other = Sealer::new(&Secret::new([9; 32])).seal(&victim.record);
    victim.reads("another secret", "another cache key", &other);
    // Two tiers, each with its own secret.
    let (one, other) = (Root::new(), Root::new());
    let (here, there) = (one.open(), other.open());
    assert!(here.store(&victim.record));
    fs::copy(one.entry(&victim.record.name()), other.entry(&victim.record.name())).unwrap();
    assert_eq!(there.load(&victim.record.request()).found(), None);
    assert!(other.log.take()[0].contains("another cache key"));
    // Only the secret matters, not the path: with it the copy is valid.
    assert!(here.load(&victim.record.request()).found().is_some());
    let copy = Root::new();
    drop(copy.open());
    fs::copy(one.key(), copy.key()).unwrap();
    fs::copy(one.entry(&victim.record.name()), copy.entry(&victim.record.name())).unwrap();
    assert_eq!(copy.open().load(&victim.record.request()).found(), Some(victim.record));
    copy.assert_quiet();
}

/// Damage that cannot be removed in a read-only folder is reported and refused each time.
#[test]
fn who_may_not_write_refuses_damage_and_leaves_it() {
    let victim = Victim::new(record("a"));
    let config = DiskConfig { read_only: true, ..victim.root.given() };
    let cache = victim.root.open_with(config).unwrap();
    let path = victim.root.entry(&victim.record.name());
    fs::write(&path, b"rubbish").unwrap();
    for _ in 0..2 {
        assert_eq!(cache.load(&victim.record.request()).found(), None);
        assert_eq!(victim.root.log.take().len(), 1);
        assert_eq!(fs::read(&path).unwrap(), b"rubbish");
    }
    assert!(!cache.may_have(&victim.record.name()));
}

/// The records of the golden files.
fn golden() -> Vec<(&'static str, Record)> {
    let artifact = Record {
        kind: SealedKind::Artifact,
        environment: Fingerprint::of(b"plugin 1, device 2"),
        region: Key::new(*b"the key of a region, 32 bytes...."[..32].first_chunk().unwrap()),
        made_in: std::time::Duration::from_micros(123_456_789),
        loaded_in: Some(std::time::Duration::from_micros(4_321)),
        request: b"what it was made from".to_vec(),
        artifact: (0..1000u32).map(|at| (at * at) as u8).collect(),
    };
    let note = Record { kind: SealedKind::Note, loaded_in: None, ..artifact.clone() };
    let not_worth_it = Record { kind: SealedKind::NotWorthIt, artifact: Vec::new(), ..artifact.clone() };
    let empty = Record { request: Vec::new(), artifact: Vec::new(), ..note.clone() };
    vec![
        ("v1-artifact.bin", artifact),
        ("v1-note.bin", note),
        ("v1-not-worth-it.bin", not_worth_it),
        ("v1-empty.bin", empty),
    ]
}

fn golden_path(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(file)
}

/// Entries of a released version are read by all versions of that format, byte for byte, so no
/// format changes by accident. If this test fails, the format needs another number.
#[test]
fn what_the_first_format_was_is_what_it_is() {
    let sealer = sealer();
    for (file, record) in golden() {
        let bytes = fs::read(golden_path(file)).unwrap();
        assert_eq!(sealer.open(&record.name(), bytes.clone()).as_ref(), Ok(&record), "{file}");
        assert_eq!(sealer.seal(&record), bytes, "{file}");
        // And through a folder.
        let root = Root::new();
        let cache = root.open_given();
        fs::write(root.entry(&record.name()), &bytes).unwrap();
        assert_eq!(cache.load(&record.request()).found().as_ref(), Some(&record), "{file}");
        root.assert_quiet();
    }
    let name = golden()[0].1.name().to_string();
    assert_eq!(
        name, "12722df2fb83d7f314776ac0a66313ae3b086741023edac85cdd8caaedb90587",
        "names are part of the format"
    );
}

/// Run manually for a new format:
/// `cargo test -p fuseline-cache --test disk_damage -- --ignored write_golden`.
#[test]
#[ignore = "writes the files that other tests compare with"]
fn write_golden_files() {
    for (file, record) in golden() {
        assert!(!golden_path(file).exists(), "{file} is there: a format that was released does not change");
        fs::write(golden_path(file), sealer().seal(&record)).unwrap();
    }
}

/// Entries of a later format have a folder of their own; one that is here by accident is a miss.
#[test]
fn another_format_is_a_miss() {
    let victim = Victim::new(golden().remove(0).1);
    let mut bytes = victim.bytes.clone();
    bytes[FORMAT_AT..FORMAT_AT + 2].copy_from_slice(&2u16.to_le_bytes());
    victim.reads("format 2", "format 2, but this build reads format 1", &bytes);
    // What follows the number is ignored.
    bytes[FORMAT_AT + 2..].fill(0xff);
    victim.reads("another header", "format 2, but this build reads format 1", &bytes);
    assert_eq!(sealer().open(&victim.record.name(), bytes), Err(Damage::Format(2)));
    // There may be folders of other formats next to this one.
    fs::create_dir(victim.root.path().join("v2")).unwrap();
    let cache = victim.root.open_given();
    assert!(cache.load(&victim.record.request()).found().is_some());
    assert!(is_there(&victim.root.path().join("v2")));
}

/// A short version of the fuzz target: bytes with a valid MAC are opened as something that seals to
/// the same bytes, or are refused.
#[test]
fn what_is_opened_seals_to_the_same_bytes() {
    let (sealer, mut random) = (sealer(), Random::new(3));
    let good = sealer.seal(&record("a"));
    let mut opened = 0;
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random.below(3) {
            // Mostly the bytes that opening reads before the MAC, and those that affect names.
            let end = if random.below(2) == 0 { MAC_AT } else { bytes.len() };
            let at = random.below(end);
            bytes[at] ^= 1 << random.below(8);
        }
        if random.below(8) == 0 {
            bytes.truncate(random.below(bytes.len() + 1));
        }
        sealer.reseal(&mut bytes);
        let name = bytes.get(NAME_AT..NAME_AT + 32).map_or([0; 32], |name| name.try_into().unwrap());
        if let Ok(record) = sealer.open(&Name::new(name), bytes.clone()) {
            assert_eq!(sealer.seal(&record), bytes);
            assert_eq!(record.name().as_bytes(), &name);
            opened += 1;
        }
    }
    assert!(opened > 100, "{opened}: nothing came past the header");
}
