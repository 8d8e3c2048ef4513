//! Inspecting a folder changes nothing in it, and reports everything that a run would not.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuseline_cache::disk::{DiskCache, DiskConfig, SecretSource, StrayFile};
use fuseline_cache::{Fingerprint, Key, Name, Record, SealedKind};

fn open(root: &Path, read_only: bool) -> DiskCache {
    let secret = SecretSource::File(root.join("state").join("cache.key"));
    let config = DiskConfig { read_only, ..DiskConfig::new(root.join("cache"), secret) };
    DiskCache::open(config, Arc::new(|told: &_| panic!("{told:?}"))).expect("a disk tier")
}

fn record(request: &str) -> Record {
    Record {
        kind: SealedKind::Artifact,
        environment: Fingerprint::of(b"here"),
        region: Key::new([1; 32]),
        made_in: Duration::from_millis(30),
        loaded_in: None,
        request: request.as_bytes().to_vec(),
        artifact: request.repeat(10).into_bytes(),
    }
}

fn file(root: &Path, folder: &str, name: &str) -> PathBuf {
    root.join("cache/v1").join(folder).join(name)
}

#[test]
fn entries_are_listed_and_opened_whatever_they_answer() {
    let root = tempfile::tempdir().unwrap();
    let cache = open(root.path(), false);
    let records = [record("a"), record("b")];
    assert!(records.iter().all(|record| cache.store(record)));
    std::fs::write(file(root.path(), "entries", "stranger"), "").unwrap();
    let look = open(root.path(), true);
    let listed = look.list().unwrap();
    let mut names: Vec<Name> = records.iter().map(Record::name).collect();
    names.sort_unstable();
    assert_eq!(listed.iter().map(|listed| listed.name).collect::<Vec<_>>(), names);
    for (record, name) in records.iter().map(|record| (record, record.name())) {
        assert_eq!(look.open_entry(&name), Ok(Some(record.clone())));
        let listed = listed.iter().find(|listed| listed.name == name).unwrap();
        assert_eq!(
            listed.size,
            std::fs::metadata(file(root.path(), "entries", &name.to_string())).unwrap().len()
        );
        assert!(listed.used <= SystemTime::now());
    }
    assert_eq!(look.open_entry(&record("c").name()), Ok(None));
    assert_eq!(look.litter().unwrap(), StrayFile { orphans: 0, strangers: 1 });
}

/// Damage is reported and stays for inspection, and so do the times of last use.
#[test]
fn looking_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let record = record("a");
    assert!(open(root.path(), false).store(&record));
    let path = file(root.path(), "entries", &record.name().to_string());
    let long_ago = SystemTime::now() - Duration::from_secs(86_400);
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    for bytes in [bytes.clone(), bytes[..100].to_vec()] {
        std::fs::write(&path, &bytes).unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago).unwrap();
        let before = std::fs::metadata(&path).unwrap().modified().unwrap();
        let unusable = open(root.path(), true).open_entry(&record.name()).unwrap_err();
        assert!(unusable.is_damaged, "{unusable}");
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        assert_eq!(std::fs::metadata(&path).unwrap().modified().unwrap(), before);
    }
}

#[test]
fn what_dead_processes_left_is_counted() {
    let root = tempfile::tempdir().unwrap();
    let cache = open(root.path(), false);
    let flight = cache.join(&record("a").request(), Duration::ZERO);
    assert!(cache.is_in_flight(&record("a").name()).unwrap());
    assert!(!cache.is_in_flight(&record("b").name()).unwrap());
    // Files that live processes have locked are no stray files.
    assert_eq!(cache.litter().unwrap(), StrayFile::default());
    for folder in ["temp", "flights", "marks"] {
        std::fs::write(file(root.path(), folder, "left"), "").unwrap();
    }
    assert_eq!(open(root.path(), true).litter().unwrap(), StrayFile { orphans: 3, strangers: 0 });
    drop(flight);
}

#[test]
fn what_is_in_quarantine_is_told_and_let_out() {
    let root = tempfile::tempdir().unwrap();
    drop(open(root.path(), false));
    let name = record("a").name();
    let until = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + 3_600;
    std::fs::write(file(root.path(), "quarantine", &name.to_string()), format!("m 1 {until}\n")).unwrap();
    let look = open(root.path(), true);
    let quarantines = look.quarantines();
    assert_eq!(quarantines.iter().map(|(name, _)| *name).collect::<Vec<_>>(), [name]);
    let cache = open(root.path(), false);
    assert!(cache.quarantine(&name).is_some());
    assert_eq!((cache.release(&name).unwrap(), cache.release(&name).unwrap()), (true, false));
    assert!(cache.quarantine(&name).is_none() && open(root.path(), true).quarantines().is_empty());
}
