//! Scenarios of a fleet, with an S3 server.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use fuseline_cache::shared::{Fetched, Offered, SharedDamage, SharedEvent, TroubleKind};
use fuseline_cache::{Damage, Secret};

use crate::liar::Valve;
use crate::s3::{PASSWORD, Server};
use crate::support::{Folder, LONG, Machine, config, record, record_of, until};

/// Bytes of a large entry.
const LARGE: usize = 24 << 20;

#[test]
fn two_machines_share_their_entries() {
    let server = Server::new();
    let (one, other) = (Machine::new(server.config()), Machine::new(server.config()));
    assert_eq!(one.get(&record(1)), Fetched::Miss);
    one.put(record(1));
    one.put(record_of(2, 5 << 20));
    assert_eq!(other.get(&record(1)), Fetched::Hit(Arc::new(record(1))));
    assert!(other.has(&record_of(2, 5 << 20)), "a large one");
    // Both made one meanwhile: the first stays, without an error.
    one.put(record(3));
    other.put(record(3));
    let stats = other.cache.stats();
    assert_eq!((stats.hits, stats.written, stats.already_there, stats.write_errors), (2, 0, 1, 0));
    assert_eq!(server.objects().len(), 3);
    // A machine that starts later finds all of it.
    let third = Machine::new(server.config());
    assert!((1..4).filter(|number| *number != 2).all(|number| third.has(&record(number))));
    assert_eq!((one.told(), other.told(), third.told()), (vec![], vec![], vec![]));
}

#[test]
fn a_server_that_is_killed_in_the_middle_costs_a_miss_and_comes_back() {
    let server = Server::new();
    let writer = Machine::new(server.config());
    // More than sockets buffer while nobody reads.
    writer.put(record_of(0, LARGE));
    for number in 1..4 {
        writer.put(record(number));
    }
    // The header of the answer and some of the entry pass.
    let valve = Valve::new(server.port, 200_000);
    let reader = Machine::new(server.config_at(valve.port));
    let fetch = reader.cache.fetch(&record_of(0, LARGE).request());
    until("the answer is on its way", || valve.held() > 0);
    assert_eq!(fetch.poll(), None);
    server.kill();
    valve.open();
    let answer = fetch.within(LONG).expect("an answer");
    let Fetched::Damaged(SharedDamage::Answer(trouble)) = &answer else { panic!("{answer:?}") };
    assert_eq!(trouble.kind, TroubleKind::CutOff);

    let reader = Machine::new(server.config());
    until("it is taken for dead", || {
        assert!(reader.get(&record(1)).hit().is_none());
        reader.cache.stats().is_offline
    });
    reader.await_event(
        |event| matches!(event, SharedEvent::Offline { why, .. } if why.kind == TroubleKind::Unreachable),
    );
    // Entries made meanwhile wait.
    assert_eq!(reader.cache.offer(record(9)), Offered::Queued);
    server.start();
    until("it is back", || reader.has(&record(1)));
    reader.await_event(|event| matches!(event, SharedEvent::Online { .. }));
    until("what waited is written", || reader.cache.flush(LONG));
    assert!(writer.has(&record(9)));
    assert!((1..4).all(|number| reader.has(&record(number))), "nothing was lost");
    assert!(reader.has(&record_of(0, LARGE)), "or damaged");
}

#[test]
fn a_slow_server_loses_the_race_and_is_not_waited_for() {
    let server = Server::new();
    let writer = Machine::new(server.config());
    writer.put(record(1));
    let valve = Valve::new(server.port, 0);
    let reader = Machine::new(server.config_at(valve.port));
    let fetch = reader.cache.fetch(&record(1).request());
    until("the answer is held up", || valve.held() > 0);
    // The compile ends here. Nothing has arrived, so its result is used, and the fetch is dropped.
    assert_eq!((fetch.poll(), fetch.within(Duration::from_millis(1))), (None, None));
    drop(fetch);
    valve.open();
    until("the read is given up", || reader.cache.stats().cancelled + reader.cache.stats().hits == 1);
    // The next fetch is as fast as the network, and wins.
    assert!(reader.has(&record(1)));

    // Too slow for a request: after a few, the store is left alone.
    let closed = Valve::new(server.port, 0);
    let mut config = server.config_at(closed.port);
    config.timeout = Duration::from_millis(50);
    let reader = Machine::new(config);
    let event = reader.await_event_while(
        || drop(reader.get(&record(1))),
        |event| matches!(event, SharedEvent::Offline { .. }),
    );
    assert!(matches!(event, SharedEvent::Offline { why, .. } if why.kind == TroubleKind::TimedOut));
}

#[test]
fn a_full_store_still_serves_and_takes_entries_again_when_there_is_room() {
    let server = Server::new();
    let machine = Machine::new(server.config());
    machine.put(record(1));
    server.set_quota(Some(15_000));
    for number in 2..7 {
        assert_eq!(machine.cache.offer(record(number)), Offered::Queued);
    }
    let event = machine.await_event(|event| matches!(event, SharedEvent::WritesPaused { .. }));
    assert!(event.to_string().contains("it is full (507 XMinioStorageFull)"), "{event}");
    assert!(!machine.cache.flush(LONG), "nobody waits for a full store");
    assert_eq!(server.objects().len(), 1);
    let other = Machine::new(server.config());
    assert!(other.has(&record(1)), "it still serves");
    server.set_quota(None);
    machine.await_event(|event| matches!(event, SharedEvent::WritesResumed { .. }));
    until("everything is written", || machine.cache.flush(LONG));
    let other = Machine::new(server.config());
    assert!((1..7).all(|number| other.has(&record(number))));
    assert_eq!(machine.cache.stats().not_written, 0);
}

/// A store with changed bytes, whatever the cause.
#[test]
fn damaged_objects_are_misses_and_are_healed_once() {
    let server = Server::new();
    let writer = Machine::new(server.config());
    for number in 0..5 {
        writer.put(record(number));
    }
    let object = |number| server.object(record(number).name());
    let change = |number, change: fn(Vec<u8>) -> Vec<u8>| {
        let bytes = std::fs::read(object(number)).expect("an object");
        std::fs::write(object(number), change(bytes)).expect("an object");
    };
    change(0, |mut bytes| {
        bytes[5000] ^= 1;
        bytes
    });
    change(1, |bytes| bytes[..9000].to_vec());
    change(2, |bytes| [bytes, b"more".to_vec()].concat());
    // Two objects that were exchanged.
    std::fs::rename(object(3), object(3).with_extension("x")).unwrap();
    std::fs::rename(object(4), object(3)).unwrap();
    std::fs::rename(object(3).with_extension("x"), object(4)).unwrap();

    let wanted = [
        SharedDamage::Entry(Damage::Mac),
        SharedDamage::Entry(Damage::Length),
        SharedDamage::TooLong,
        SharedDamage::Entry(Damage::Name),
        SharedDamage::Entry(Damage::Name),
    ];
    let worker = Machine::new({
        let mut config = server.config();
        config.read_only = true;
        config
    });
    let machine = Machine::new(server.config());
    for (number, damage) in (0..5).zip(wanted) {
        assert_eq!(worker.get(&record(number)), Fetched::Damaged(damage.clone()), "{number}");
        assert_eq!(worker.cache.offer(record(number)), Offered::ReadOnly);
        assert_eq!(machine.get(&record(number)), Fetched::Damaged(damage.clone()), "{number}");
        let name = record(number).name();
        assert_eq!(machine.told(), [SharedEvent::Damaged { name, why: damage }]);
        // It was compiled, and is offered.
        machine.put(record(number));
        machine.await_event(|event| *event == SharedEvent::Healed { name });
        assert!(worker.has(&record(number)), "{number}");
    }
    let stats = machine.cache.stats();
    assert_eq!((stats.damaged, stats.healed, stats.written), (5, 5, 5));
    assert_eq!((worker.cache.stats().healed, worker.cache.stats().written), (0, 0));
    // An object that is damaged repeatedly is not rewritten each time.
    change(0, |mut bytes| {
        bytes[5000] ^= 1;
        bytes
    });
    assert!(machine.get(&record(0)).hit().is_none());
    machine.put(record(0));
    assert_eq!(machine.cache.stats().healed, 5);
}

/// Two fleets that share a prefix by mistake do not overwrite each other's entries.
#[test]
fn another_fleets_entries_are_left_alone() {
    let server = Server::new();
    let writer = Machine::new(server.config());
    for number in 0..9 {
        writer.put(record(number));
    }
    let before: Vec<Vec<u8>> = server.objects().iter().map(|path| std::fs::read(path).unwrap()).collect();
    let mut config = server.config();
    config.secret = Secret::new([6; 32]);
    let stranger = Machine::new(config);
    for number in 0..9 {
        assert_eq!(stranger.get(&record(number)), Fetched::Damaged(SharedDamage::Entry(Damage::Mac)));
    }
    for number in 0..9 {
        stranger.put(record(number));
    }
    let told = stranger.told();
    assert_eq!(told.iter().filter(|event| **event == SharedEvent::OtherKey).count(), 1);
    let after: Vec<Vec<u8>> = server.objects().iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(before == after, "nothing was written over");
    assert_eq!((stranger.cache.stats().healed, stranger.cache.stats().hits), (0, 0));
}

#[test]
fn a_worker_that_only_reads_changes_nothing() {
    let server = Server::new();
    Machine::new(server.config()).put(record(1));
    let mut config = server.config();
    config.read_only = true;
    let worker = Machine::new(config);
    assert!(worker.has(&record(1)));
    assert_eq!(worker.get(&record(2)), Fetched::Miss);
    assert_eq!(worker.cache.offer(record(2)), Offered::ReadOnly);
    assert!(worker.cache.shut_down(LONG));
    assert_eq!(server.objects(), [server.object(record(1).name())]);
}

#[test]
fn wrong_credentials_are_told_with_what_to_do_and_without_themselves() {
    let server = Server::new();
    Machine::new(server.config()).put(record(1));
    let wrong = "wrong horse battery staple";
    for (option, value, says) in
        [("secret_access_key", wrong, "SignatureDoesNotMatch"), ("access_key_id", "nobody", "403")]
    {
        let machine = Machine::new(server.config().option(option, value));
        let answer = machine.get(&record(1));
        let Fetched::Failed(trouble) = &answer else { panic!("{answer:?}") };
        assert_eq!(trouble.kind, TroubleKind::Refused);
        for number in 2..4 {
            assert!(machine.get(&record(number)).hit().is_none());
        }
        let event = machine.await_event(|event| matches!(event, SharedEvent::Offline { .. })).to_string();
        assert!(event.contains(says) && event.contains("check that the credentials"), "{event}");
        assert_eq!(machine.cache.offer(record(5)), Offered::Queued);
        machine.await_event(|event| matches!(event, SharedEvent::WritesPaused { .. }));
        let everything = format!("{event} {answer:?} {trouble} {:?} {:?}", machine.cache, machine.told());
        for secret in [wrong, PASSWORD, "nobody"] {
            assert!(!everything.contains(secret), "{everything}");
        }
    }
    let mut config = server.config();
    config.url = "s3://elsewhere/cache".to_owned();
    let machine = Machine::new(config);
    let answer = machine.get(&record(1));
    assert!(
        matches!(&answer, Fetched::Failed(trouble) if trouble.kind == TroubleKind::NoStore),
        "{answer:?}"
    );
    assert_eq!(machine.cache.offer(record(1)), Offered::Queued);
    let event = machine.await_event(|event| matches!(event, SharedEvent::WritesPaused { .. })).to_string();
    assert!(event.contains("there is no such bucket or folder (404 NoSuchBucket)"), "{event}");
}

#[test]
fn a_machine_may_start_without_the_store() {
    // A port without a listener.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::stopped_at(port);
    let machine = Machine::new(server.config());
    for number in 0..3 {
        let answer = machine.get(&record(number));
        let Fetched::Failed(trouble) = &answer else { panic!("{answer:?}") };
        assert_eq!(trouble.kind, TroubleKind::Unreachable);
        assert!(trouble.to_string().contains("check the address and the network"), "{trouble}");
        assert_eq!(machine.cache.offer(record(number)), Offered::Queued);
    }
    machine.await_event(|event| matches!(event, SharedEvent::Offline { .. }));
    machine.await_event(|event| matches!(event, SharedEvent::WritesPaused { .. }));
    assert!(!machine.cache.flush(LONG), "nobody waits for a store that is not there");
    server.start();
    machine.await_event(|event| matches!(event, SharedEvent::WritesResumed { .. }));
    until("what was made meanwhile is written", || machine.cache.flush(LONG));
    assert_eq!(server.objects().len(), 3);
    until("it is read again", || machine.has(&record(0)));
    machine.await_event(|event| matches!(event, SharedEvent::Online { .. }));
}

#[test]
fn a_folder_is_a_store_too() {
    let folder = Folder::new();
    let url = format!("file://{}/deep/down", folder.0.display());
    let (one, other) = (Machine::new(config(&url)), Machine::new(config(&url)));
    assert_eq!(other.get(&record(2)), Fetched::Miss);
    one.put(record(1));
    one.put(record(3));
    other.put(record(3));
    assert!(other.has(&record(1)));
    assert_eq!((other.cache.stats().already_there, other.cache.stats().written), (1, 0));
    let object = folder.0.join("deep/down/v1").join(record(1).name().to_string());
    std::fs::write(&object, b"nothing of the kind").unwrap();
    let third = Machine::new(config(&url));
    assert!(matches!(third.get(&record(1)), Fetched::Damaged(_)));
    third.put(record(1));
    assert!(one.has(&record(1)), "healed");
    let left: Vec<_> = std::fs::read_dir(folder.0.join("deep/down/v1")).unwrap().flatten().collect();
    assert_eq!(left.len(), 2, "nothing but entries: {left:?}");
    // A folder in place of an entry, and a file in place of the folder.
    std::fs::create_dir(folder.0.join("deep/down/v1").join(record(7).name().to_string())).unwrap();
    assert!(third.get(&record(7)).hit().is_none());
    std::fs::write(folder.0.join("file"), b"").unwrap();
    let nowhere = Machine::new(config(&format!("file://{}/file", folder.0.display())));
    assert!(nowhere.get(&record(1)).hit().is_none());
    assert_eq!(nowhere.cache.offer(record(1)), Offered::Queued);
    nowhere.await_event(|event| {
        matches!(event, SharedEvent::NotWritten { .. } | SharedEvent::WritesPaused { .. })
    });
}

/// An entry's path that is not a regular file does not block, and is overwritten.
#[test]
fn a_pipe_in_a_folder_is_no_entry() {
    let folder = Folder::new();
    let machine = Machine::new(config(&format!("file://{}", folder.0.display())));
    machine.put(record(1));
    let written = |folder: &std::path::Path| -> Vec<std::path::PathBuf> {
        let inner = folder.join(format!("v{}", fuseline_cache::FORMAT));
        std::fs::read_dir(inner).expect("a folder").map(|file| file.expect("a file").path()).collect()
    };
    let [path] = &written(&folder.0)[..] else { panic!("one entry") };
    std::fs::remove_file(path).expect("removed");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).expect("a pipe");
    let reader = Machine::new(config(&format!("file://{}", folder.0.display())));
    let answer = reader.get(&record(1));
    assert!(matches!(&answer, Fetched::Damaged(SharedDamage::Answer(_))), "{answer:?}");
}
