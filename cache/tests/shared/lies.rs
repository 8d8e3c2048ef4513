//! Servers with wrong answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fuseline_cache::shared::{Fetched, SharedDamage, SharedEvent, TroubleKind};
use fuseline_cache::{Damage, Record, Sealer, Secret};

use crate::liar::{Act, Liar, http};
use crate::support::{FLEET, LONG, Machine, config, record, until};

fn sealed(record: &Record) -> Vec<u8> {
    Sealer::new(&FLEET).seal(record)
}

fn ok(body: &[u8]) -> Vec<u8> {
    http("200 OK", body.len(), body)
}

/// The effect of an answer.
#[derive(Debug, PartialEq)]
enum Is {
    Hit,
    Damaged(SharedDamage),
    /// Truncated, or a redirect loop.
    BadAnswer(TroubleKind),
    Failed(TroubleKind),
}

fn check(what: &str, act: Act, is: Is) -> Liar {
    let liar = Liar::new(move |_, _| act.clone());
    let mut config = config(&liar.url());
    config.max_entry = 1 << 20;
    let machine = Machine::new(config);
    let answer = machine.get(&record(1));
    let was = match &answer {
        Fetched::Hit(hit) => {
            assert_eq!(**hit, record(1), "{what}");
            Is::Hit
        }
        Fetched::Damaged(SharedDamage::Answer(trouble)) => Is::BadAnswer(trouble.kind),
        Fetched::Damaged(damage) => Is::Damaged(damage.clone()),
        Fetched::Failed(trouble) => Is::Failed(trouble.kind),
        other => panic!("{what}: {other:?}"),
    };
    assert_eq!(was, is, "{what}: {answer:?}");
    let stats = machine.cache.stats();
    let damaged = matches!(is, Is::Damaged(_) | Is::BadAnswer(_));
    assert_eq!(stats.damaged, u64::from(damaged), "{what}");
    assert_eq!(stats.read_errors, u64::from(matches!(is, Is::Failed(_))), "{what}");
    let told = machine.told();
    assert_eq!(
        told.iter().any(|event| matches!(event, SharedEvent::Damaged { .. })),
        damaged,
        "{what}: {told:?}"
    );
    assert!(stats.bytes_down < 2 << 20, "{what}: {} bytes were taken in", stats.bytes_down);
    liar
}

#[test]
fn what_is_not_the_entry_is_not_taken_for_it() {
    let entry = sealed(&record(1));
    let flipped = |at: usize| {
        let mut bytes = entry.clone();
        bytes[at] ^= 0x10;
        ok(&bytes)
    };
    let entry_is = |damage| Is::Damaged(SharedDamage::Entry(damage));
    check("the entry", Act::Say(ok(&entry)), Is::Hit);
    check("a bit of the artifact", Act::Say(flipped(5000)), entry_is(Damage::Mac));
    check("a bit of the MAC", Act::Say(flipped(150)), entry_is(Damage::Mac));
    check("a bit of the time it took", Act::Say(flipped(115)), entry_is(Damage::Mac));
    check("another entry", Act::Say(ok(&sealed(&record(2)))), entry_is(Damage::Name));
    let other = Sealer::new(&Secret::new([9; 32])).seal(&record(1));
    check("one of another fleet", Act::Say(ok(&other)), entry_is(Damage::Mac));
    check("a page for people", Act::Say(ok(&b"<html>log in".repeat(100))), entry_is(Damage::Magic));
    check("nothing", Act::Say(ok(b"")), entry_is(Damage::Short));
    check("half of it, as if it were all", Act::Say(ok(&entry[..5000])), entry_is(Damage::Length));
    check(
        "half of it, the length being right",
        Act::Say(http("200 OK", entry.len(), &entry[..5000])),
        Is::BadAnswer(TroubleKind::CutOff),
    );
    check("a length that is too small", Act::Say(http("200 OK", 5000, &entry)), entry_is(Damage::Length));
    check(
        "a length that is too large",
        Act::Say(http("200 OK", entry.len() + 9, &entry)),
        Is::BadAnswer(TroubleKind::CutOff),
    );
    check(
        "a length beyond all",
        Act::Say(http("200 OK", 1 << 60, &entry)),
        Is::Damaged(SharedDamage::TooLong),
    );
    let twice = [&entry[..], &entry[..]].concat();
    check("it twice", Act::Say(ok(&twice)), Is::Damaged(SharedDamage::TooLong));
    check("no HTTP", Act::Say(b"SSH-2.0-OpenSSH\r\n".to_vec()), Is::Failed(TroubleKind::Other));
    check("no word", Act::Say(Vec::new()), Is::Failed(TroubleKind::CutOff));
    let nowhere = b"<Error><Code>NoSuchBucket</Code></Error>";
    check(
        "no bucket",
        Act::Say(http("404 Not Found", nowhere.len(), nowhere)),
        Is::Failed(TroubleKind::NoStore),
    );
    check("busy", Act::Say(http("503 Service Unavailable", 2, b"no")), Is::Failed(TroubleKind::Busy));
}

#[test]
fn what_does_not_end_is_ended() {
    let entry = sealed(&record(1));
    let claimed = http("200 OK", 1 << 20, &entry);
    let more = vec![0; 64 << 10];
    check("more than was announced", Act::Endless(claimed, more.clone()), Is::Damaged(SharedDamage::TooLong));
    // An answer that claims the largest permitted length is read, but no further.
    let mut long = sealed(&record(1));
    long[136..144].copy_from_slice(&((1u64 << 20) - 176 - 4).to_le_bytes());
    let long = http("200 OK", 1 << 20, &long);
    check(
        "as long as can be",
        Act::Endless(long, more.clone()),
        Is::Damaged(SharedDamage::Entry(Damage::Mac)),
    );
    let chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n".to_vec();
    check(
        "pieces of an unknown whole",
        Act::Endless(chunked, [b"10000\r\n", &more[..], b"\r\n"].concat()),
        Is::Failed(TroubleKind::Other),
    );
    let error = http("500 Internal Server Error", 1 << 60, b"<Error><Code>InternalError</Code>");
    let liar =
        check("an error without an end", Act::Endless(error, more.clone()), Is::Failed(TroubleKind::Other));
    // Only what the sockets buffered was sent.
    assert!(liar.sent.load(std::sync::atomic::Ordering::SeqCst) < 64 << 20);
    let headers = b"HTTP/1.1 200 OK\r\n".to_vec();
    check(
        "headers without an end",
        Act::Endless(headers, b"x-more: of them\r\n".to_vec()),
        Is::Failed(TroubleKind::Other),
    );
}

#[test]
fn a_server_that_sends_in_circles_is_left() {
    let liar = check(
        "a circle",
        Act::Say(b"HTTP/1.1 302 Found\r\nlocation: /cache/v1/other\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_vec()),
        Is::BadAnswer(TroubleKind::Redirects),
    );
    assert!(liar.asked.load(std::sync::atomic::Ordering::SeqCst) < 20);
}

#[test]
fn silence_is_ended_by_the_time_of_a_request() {
    let liar = Liar::new(|_, _| Act::Silent);
    let mut config = config(&liar.url());
    config.timeout = Duration::from_millis(50);
    let machine = Machine::new(config);
    let Fetched::Failed(trouble) = machine.get(&record(1)) else { panic!("silence is no answer") };
    assert_eq!(trouble.kind, TroubleKind::TimedOut);
}

/// A plain HTTP server has no conditional puts: look first, then write.
#[test]
fn a_plain_http_server_serves_a_fleet() {
    let objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>> = Arc::default();
    let kept = objects.clone();
    let liar = Liar::new(move |method, path| {
        let mut objects = kept.lock().unwrap();
        Act::Say(match (method, objects.get(path)) {
            ("PUT", _) => {
                // The test knows what was sent.
                objects.insert(path.to_owned(), sealed(&record(1)));
                http("201 Created", 0, b"")
            }
            ("HEAD", Some(bytes)) => http("200 OK", bytes.len(), b""),
            ("GET", Some(bytes)) => ok(bytes),
            _ => http("404 Not Found", 0, b""),
        })
    });
    let (one, other) = (Machine::new(config(&liar.url())), Machine::new(config(&liar.url())));
    assert_eq!(one.get(&record(1)), Fetched::Miss);
    one.put(record(1));
    assert!(other.has(&record(1)));
    let third = Machine::new(config(&liar.url()));
    third.put(record(1));
    assert_eq!((third.cache.stats().already_there, third.cache.stats().written), (1, 0));
    let paths: Vec<String> = objects.lock().unwrap().keys().cloned().collect();
    assert_eq!(paths, [format!("/cache/v1/{}", record(1).name())]);
}

/// User and password in the URL are never shown.
#[test]
fn what_is_secret_in_a_url_is_not_shown() {
    let said = b"<Code>hunter22hunter</Code>";
    let liar = Liar::new(|_, _| Act::Say(http("401 Unauthorized", said.len(), said)));
    let url = format!("http://me:hunter22hunter@127.0.0.1:{}/cache?sig=hunter22hunter", liar.port);
    let machine = Machine::new(config(&url));
    for number in 0..3 {
        let answer = format!("{:?}", machine.get(&record(number)));
        assert!(answer.contains("401 [secret]") && !answer.contains("hunter22hunter"), "{answer}");
    }
    until("it is offline", || machine.cache.stats().is_offline);
    let _ = machine.cache.offer(record(9));
    let event = machine.await_event(|event| matches!(event, SharedEvent::WritesPaused { .. }));
    let shown = format!("{:?} {event} {event:?}", machine.cache);
    assert!(shown.contains("/cache") && !shown.contains("hunter22hunter"), "{shown}");
    assert!(!machine.cache.shut_down(LONG));
}
