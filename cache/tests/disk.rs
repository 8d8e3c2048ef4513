//! The disk tier, in folders of its own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::disk::{DiskCache, DiskConfig, SecretSource};
use fuseline_cache::{Fingerprint, Key, Kind, Record};

fn open(root: &Path) -> DiskCache {
    let config =
        DiskConfig::new(root.join("cache"), SecretSource::File(root.join("state").join("cache.key")));
    DiskCache::open(config, Arc::new(|told: &_| panic!("{told:?}"))).expect("a disk tier")
}

fn record(request: &str) -> Record {
    Record {
        kind: Kind::Artifact,
        environment: Fingerprint::of(b"here"),
        region: Key::new([1; 32]),
        made_in: Duration::from_millis(30),
        loaded_in: None,
        request: request.as_bytes().to_vec(),
        artifact: request.repeat(10).into_bytes(),
    }
}

#[test]
fn what_one_process_stores_another_finds() {
    let root = tempfile::tempdir().unwrap();
    let (cache, record) = (open(root.path()), record("a"));
    assert!(cache.load(&record.request()).found().is_none());
    assert!(cache.store(&record));
    let other = open(root.path());
    assert!(other.may_have(&record.name()));
    assert_eq!(other.load(&record.request()).found(), Some(record.clone()));
    assert_eq!(cache.load(&record.request()).found(), Some(record.clone()));
    assert!(cache.remove(&record.name()));
    assert!(other.load(&record.request()).found().is_none());
}
