//! Entries of the disk cache. Bytes are an entry exactly if they have the right layout, match the
//! name under which they are found and have the right MAC. All other bytes are refused, without a
//! panic and without an allocation larger than the input.
//!
//! A fuzzer never guesses a MAC or a hash. So the first byte of the input selects whether the right
//! MAC is inserted after the input was changed, or the right name and MAC, or whether the input is
//! the parts of a record. The layout is defined here a second time, by offsets. About 10 µs an
//! execution.

use std::time::Duration;

use fuseline_cache::{Fingerprint, Key, Name, Record, Request, SealedKind, Sealer, Secret};
use fuseline_testgen::Entropy as _;

use super::alloc_support::peak;
use super::bytes::Bytes;

const HEADER: usize = 176;

/// Bytes that opening may allocate besides the input: for the artifact, which is copied, and for
/// messages.
const BESIDE: u64 = 4096;

fn sealer() -> Sealer {
    Sealer::new(&Secret::new(*b"a secret that everybody can read"))
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("so many bytes")
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(field(bytes, at))
}

/// The record of the bytes, if they are an entry except for name and MAC.
fn laid_out(bytes: &[u8]) -> Option<Record> {
    if bytes.len() < HEADER || bytes[..8] != *b"FUSELINE" || bytes[8..10] != [1, 0] {
        return None;
    }
    let kind = match bytes[10] {
        1 => SealedKind::Artifact,
        2 => SealedKind::NotWorthIt,
        3 => SealedKind::Note,
        _ => return None,
    };
    let (request, artifact) = (number(bytes, 128), number(bytes, 136));
    let whole = HEADER as u128 + u128::from(request) + u128::from(artifact);
    if bytes[11] != 0 || bytes[12..16] != [HEADER as u8, 0, 0, 0] || whole != bytes.len() as u128 {
        return None;
    }
    let border = HEADER + request as usize;
    let loaded_in = number(bytes, 120);
    Some(Record {
        kind,
        environment: Fingerprint::new(field(bytes, 48)),
        region: Key::new(field(bytes, 80)),
        made_in: Duration::from_micros(number(bytes, 112)),
        loaded_in: (loaded_in > 0).then(|| Duration::from_micros(loaded_in)),
        request: bytes[HEADER..border].to_vec(),
        artifact: bytes[border..].to_vec(),
    })
}

/// Takes the parts of a record, in order.
fn record(how: &mut Bytes<'_>, body: &[u8]) -> Record {
    let time = |how: &mut Bytes<'_>| match how.draw(4) {
        0 => 0,
        1 => u64::from(how.draw(1 << 16)),
        2 => u64::MAX,
        _ => u64::from(how.draw(u32::MAX)) << 32,
    };
    let (request, artifact) = body.split_at(how.draw(body.len() as u32 + 1) as usize);
    Record {
        kind: [SealedKind::Artifact, SealedKind::NotWorthIt, SealedKind::Note][how.draw(3) as usize],
        environment: Fingerprint::new([how.draw(256) as u8; 32]),
        region: Key::new([how.draw(256) as u8; 32]),
        made_in: Duration::from_micros(time(how)),
        loaded_in: Some(Duration::from_micros(time(how))).filter(|took| !took.is_zero()),
        request: request.to_vec(),
        artifact: artifact.to_vec(),
    }
}

pub(super) fn run(data: &[u8]) {
    let Some((&what, data)) = data.split_first() else { return };
    // The changes come from the end, so that an entry without anything after it stays one.
    let tail = data.len() - data.len().min(8);
    let mut how = Bytes::new(&data[tail..]);
    let sealer = sealer();
    let bytes = match what % 4 {
        0 => data.to_vec(),
        1 => {
            let mut bytes = data.to_vec();
            sealer.reseal(&mut bytes);
            bytes
        }
        2 => {
            let mut bytes = data.to_vec();
            if let Some(record) = laid_out(&bytes) {
                bytes[16..48].copy_from_slice(record.name().as_bytes());
            }
            sealer.reseal(&mut bytes);
            bytes
        }
        _ => {
            let record = record(&mut how, data);
            let bytes = sealer.seal(&record);
            assert_eq!(laid_out(&bytes).as_ref(), Some(&record), "sealed otherwise");
            bytes
        }
    };
    let found_by = if bytes.len() >= 48 { Name::new(field(&bytes, 16)) } else { Name::new([0; 32]) };
    is_answered(&sealer, &found_by, bytes.clone());
    // Looked up under another name, sealed with another secret, changed anywhere, truncated or
    // extended: it is never accepted.
    let mut other = *found_by.as_bytes();
    other[how.draw(32) as usize] ^= 1 << how.draw(8);
    assert!(sealer.open(&Name::new(other), bytes.clone()).is_err(), "opened under another name");
    let stranger = Sealer::new(&Secret::new([what; 32]));
    assert!(stranger.open(&found_by, bytes.clone()).is_err(), "opened with another secret");
    if sealer.open(&found_by, bytes.clone()).is_err() {
        return;
    }
    let mut changed = bytes.clone();
    let at = how.draw(changed.len() as u32) as usize;
    changed[at] ^= 1 << how.draw(8);
    assert!(sealer.open(&found_by, changed).is_err(), "opened with byte {at} changed");
    let short = how.draw(bytes.len() as u32) as usize;
    assert!(sealer.open(&found_by, bytes[..short].to_vec()).is_err(), "{short} bytes of it are opened");
    assert!(sealer.open(&found_by, [&bytes[..], &[what]].concat()).is_err(), "opened with a byte more");
    // The boundary between request and artifact is part of the request, whoever sealed it.
    let mut moved = bytes.clone();
    let (request, artifact) = (number(&bytes, 128), number(&bytes, 136));
    if artifact > 0 {
        moved[128..136].copy_from_slice(&(request + 1).to_le_bytes());
        moved[136..144].copy_from_slice(&(artifact - 1).to_le_bytes());
        sealer.reseal(&mut moved);
        assert!(sealer.open(&found_by, moved).is_err(), "opened as the answer to another request");
    }
}

/// The bytes are opened exactly if they should be, as their contents say, and sealing gives the
/// same bytes again.
fn is_answered(sealer: &Sealer, name: &Name, bytes: Vec<u8>) {
    let len = bytes.len() as u64;
    let mut right = bytes.clone();
    sealer.reseal(&mut right);
    let wanted = laid_out(&bytes).filter(|record| right == bytes && record.name() == *name);
    let copy = bytes.clone();
    let (found, took) = peak(|| sealer.open(name, copy));
    assert!(took <= len + BESIDE, "{len} bytes took {took} more");
    match (found, wanted) {
        (Ok(found), Some(wanted)) => {
            assert!(found == wanted, "opened as {found:?}, which is {wanted:?}");
            let request =
                Request { region: found.region, environment: found.environment, bytes: &found.request };
            assert!(found.request() == request && request.name() == *name, "it answers another request");
            assert!(sealer.seal(&found) == bytes, "sealed again it is something else");
        }
        (Ok(found), None) => panic!("opened though it is no entry: {found:?}"),
        (Err(why), Some(wanted)) => panic!("refused ({why}) though it is {wanted:?}"),
        (Err(why), None) => assert!(!why.to_string().is_empty()),
    }
}
