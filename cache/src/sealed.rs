//! Sealed entries: bytes that nobody without the secret can make.
//!
//! ```text
//! offset  size
//!      0     8  magic
//!      8     2  format of what follows
//!     10     1  kind
//!     11     1  0
//!     12     4  length of the header
//!     16    32  name
//!     48    32  environment
//!     80    32  region
//!    112     8  how long the artifact took to make, in µs
//!    120     8  how long it took to load, in µs; 0 if unknown
//!    128     8  length of the request
//!    136     8  length of the artifact
//!    144    32  MAC
//!    176        request, artifact
//! ```
//!
//! Numbers are little-endian. The MAC is keyed BLAKE3 over everything except itself. It detects a
//! changed bit, a shorter or longer file, an entry under another name, and entries of another user,
//! machine or format, and none of these is decoded: [`Sealer::open`] checks the magic, the format
//! and the lengths, then name and environment, then the MAC, and only then the contents.
//!
//! Input: records and a secret. Output: bytes; or a record, or the damage of the bytes.
//!
//! Invariants:
//! - DISK-1: bytes are opened only if they were sealed with the same secret, for the same name and
//!   environment, and are complete.
//! - DISK-2: opening allocates nothing on the word of a header: lengths have to match the actual
//!   bytes.

use std::fmt;
use std::time::Duration;

use crate::key::Key;
use crate::name::{Fingerprint, Name, Request};

/// The format of entries. Another format has another folder and another MAC key.
pub const FORMAT: u16 = 1;

/// Maximum size of an entry in bytes. An executable of 5,000 ops has about 10 MB; an entry that
/// claims more than this is damaged.
pub const MAX_ENTRY: u64 = 512 << 20;

const MAGIC: [u8; 8] = *b"FUSELINE";
const MAC_AT: usize = 144;
/// Length of the header of an entry, the MAC included.
pub const HEADER: usize = MAC_AT + 32;

/// Context of the derived key, with the format in it.
const MAC_KEY: &str = "fuseline cache 2026-11 MAC of entries, format 1";

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SealedKind {
    /// An artifact.
    Artifact,
    /// A note that loading the artifact takes longer than compiling it. There is no artifact.
    NotWorthIt,
    /// A note about an environment from a user of this crate.
    Note,
}

impl SealedKind {
    fn code(self) -> u8 {
        match self {
            SealedKind::Artifact => 1,
            SealedKind::NotWorthIt => 2,
            SealedKind::Note => 3,
        }
    }

    fn of(code: u8) -> Option<SealedKind> {
        [SealedKind::Artifact, SealedKind::NotWorthIt, SealedKind::Note]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// The contents of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The kind.
    pub kind: SealedKind,
    /// The environment it was made in.
    pub environment: Fingerprint,
    /// The region's key.
    pub region: Key,
    /// How long the compile took.
    pub made_in: Duration,
    /// How long loading took, if known.
    pub loaded_in: Option<Duration>,
    /// What it was compiled from: [`Request::bytes`].
    pub request: Vec<u8>,
    /// The artifact.
    pub artifact: Vec<u8>,
}

impl Record {
    /// The request that it answers.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        Request { region: self.region, environment: self.environment, bytes: &self.request }
    }

    /// The name of its entry.
    #[must_use]
    pub fn name(&self) -> Name {
        self.request().name()
    }
}

/// The damage of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Damage {
    /// It is shorter than a header.
    Short,
    /// It is not an entry.
    Magic,
    /// It has another format.
    Format(u16),
    /// Its lengths do not match its size.
    Length,
    /// Its name is not the one that it was found under.
    Name,
    /// It was changed, or sealed with another secret.
    Mac,
    /// It answers another request.
    Request,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Damage::Short => f.write_str("it is truncated"),
            Damage::Magic => f.write_str("it is not a cache entry"),
            Damage::Format(format) => {
                write!(f, "it has format {format}, but this build reads format {FORMAT}")
            }
            Damage::Length => f.write_str("its length differs from the length in its header"),
            Damage::Name => f.write_str("its header has another name"),
            Damage::Mac => f.write_str("it was changed, or written with another cache key"),
            Damage::Request => f.write_str("it is the answer to another request"),
        }
    }
}

impl std::error::Error for Damage {}

/// 32 secret bytes. Anyone who has them can make entries.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl Secret {
    /// Wraps bytes that should be random.
    #[must_use]
    pub const fn new(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Seals and opens entries.
#[derive(Clone)]
pub struct Sealer([u8; 32]);

impl Sealer {
    /// Uses a key derived from the secret, for this format only.
    #[must_use]
    pub fn new(secret: &Secret) -> Sealer {
        Sealer(blake3::derive_key(MAC_KEY, secret.as_bytes()))
    }

    fn mac(&self, header: &[u8], body: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(header);
        hasher.update(body);
        hasher.finalize()
    }

    /// The bytes of an entry.
    #[must_use]
    pub fn seal(&self, record: &Record) -> Vec<u8> {
        let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX).to_le_bytes();
        let mut bytes = Vec::with_capacity(HEADER + record.request.len() + record.artifact.len());
        bytes.extend(MAGIC);
        bytes.extend(FORMAT.to_le_bytes());
        bytes.extend([record.kind.code(), 0]);
        bytes.extend((HEADER as u32).to_le_bytes());
        bytes.extend(record.name().as_bytes());
        bytes.extend(record.environment.as_bytes());
        bytes.extend(record.region.as_bytes());
        bytes.extend(micros(record.made_in));
        // 0 means unknown, so a load counts as at least 1 µs.
        bytes.extend(record.loaded_in.map_or([0; 8], |took| micros(took.max(Duration::from_micros(1)))));
        bytes.extend((record.request.len() as u64).to_le_bytes());
        bytes.extend((record.artifact.len() as u64).to_le_bytes());
        bytes.extend([0; 32]);
        bytes.extend(&record.request);
        bytes.extend(&record.artifact);
        self.reseal(&mut bytes);
        bytes
    }

    /// Puts the right MAC into bytes of at least the length of a header, to test the checks after
    /// the MAC. It grants nothing new: a sealer can make entries anyway.
    pub fn reseal(&self, bytes: &mut [u8]) {
        if let Some((header, body)) = bytes.split_first_chunk_mut::<HEADER>() {
            let mac = self.mac(&header[..MAC_AT], body);
            header[MAC_AT..].copy_from_slice(mac.as_bytes());
        }
    }

    /// The record in the bytes found under `name`. [Sealing](Sealer::seal) it again gives the same
    /// bytes.
    ///
    /// # Errors
    /// The damage of the bytes.
    pub fn open(&self, name: &Name, bytes: Vec<u8>) -> Result<Record, Damage> {
        let header = Header::read(&bytes)?;
        if header.name != *name {
            return Err(Damage::Name);
        }
        let mac = blake3::Hash::from_bytes(header.mac);
        // Hashes are compared in constant time.
        if self.mac(&bytes[..MAC_AT], &bytes[HEADER..]) != mac {
            return Err(Damage::Mac);
        }
        let mut request = bytes;
        let artifact = request.split_off(HEADER + header.request_len);
        request.drain(..HEADER);
        let Header { kind, environment, region, made_in, loaded_in, .. } = header;
        let record = Record { kind, environment, region, made_in, loaded_in, request, artifact };
        // Someone with the secret may have stored an entry under a wrong name.
        if record.name() != *name { Err(Damage::Name) } else { Ok(record) }
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sealer(..)")
    }
}

/// The header of an entry. Nothing in it is trusted before the MAC is checked.
struct Header {
    kind: SealedKind,
    name: Name,
    environment: Fingerprint,
    region: Key,
    made_in: Duration,
    loaded_in: Option<Duration>,
    request_len: usize,
    mac: [u8; 32],
}

/// The length of the entry of `name` according to its header, for readers that receive it in
/// pieces. Nothing in the header is trusted by this.
///
/// # Errors
/// If it is not the header of an entry of this name, or announces more than [`MAX_ENTRY`].
pub fn announced(name: &Name, header: &[u8]) -> Result<u64, Damage> {
    let (header, body) = Header::parse(header.first_chunk().ok_or(Damage::Short)?)?;
    if header.name != *name {
        return Err(Damage::Name);
    }
    body.checked_add(HEADER as u64).filter(|len| *len <= MAX_ENTRY).ok_or(Damage::Length)
}

impl Header {
    fn read(bytes: &[u8]) -> Result<Header, Damage> {
        let (header, body) = bytes.split_first_chunk::<HEADER>().ok_or(Damage::Short)?;
        let (header, announced) = Header::parse(header)?;
        if announced == body.len() as u64 { Ok(header) } else { Err(Damage::Length) }
    }

    /// The fields, and the announced length of the rest.
    fn parse(header: &[u8; HEADER]) -> Result<(Header, u64), Damage> {
        let mut rest = Fields(header);
        if rest.take() != MAGIC {
            return Err(Damage::Magic);
        }
        let format = u16::from_le_bytes(rest.take());
        if format != FORMAT {
            return Err(Damage::Format(format));
        }
        let [kind, zero] = rest.take();
        let kind = SealedKind::of(kind).filter(|_| zero == 0).ok_or(Damage::Magic)?;
        if u32::from_le_bytes(rest.take()) as usize != HEADER {
            return Err(Damage::Length);
        }
        let (name, environment, region) = (Name::new(rest.take()), rest.take(), rest.take());
        let (made_in, loaded_in) = (u64::from_le_bytes(rest.take()), u64::from_le_bytes(rest.take()));
        let lens = [u64::from_le_bytes(rest.take()), u64::from_le_bytes(rest.take())];
        let announced = lens[0].checked_add(lens[1]).ok_or(Damage::Length)?;
        let header = Header {
            kind,
            name,
            environment: Fingerprint::new(environment),
            region: Key::new(region),
            made_in: Duration::from_micros(made_in),
            loaded_in: (loaded_in != 0).then(|| Duration::from_micros(loaded_in)),
            // Used only after it is known not to exceed the length of the bytes.
            request_len: lens[0] as usize,
            mac: rest.take(),
        };
        Ok((header, announced))
    }
}

/// Reads the fields of a header, in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) =
            self.0.split_first_chunk().expect("the fields of a header are as long as a header");
        self.0 = rest;
        *field
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record {
        Record {
            kind: SealedKind::Artifact,
            environment: Fingerprint::of(b"here"),
            region: Key::new([7; 32]),
            made_in: Duration::from_millis(30),
            loaded_in: None,
            request: b"what is asked".to_vec(),
            artifact: (0..300u32).map(|byte| byte as u8).collect(),
        }
    }

    fn sealer() -> Sealer {
        Sealer::new(&Secret::new([3; 32]))
    }

    #[test]
    fn what_was_sealed_is_opened() {
        let name = record().name();
        for loaded_in in [None, Some(Duration::from_micros(1)), Some(Duration::from_secs(9))] {
            for kind in [SealedKind::Artifact, SealedKind::NotWorthIt, SealedKind::Note] {
                let record = Record { loaded_in, kind, ..record() };
                assert_eq!(sealer().open(&name, sealer().seal(&record)), Ok(record));
            }
        }
        let empty = Record { request: Vec::new(), artifact: Vec::new(), ..record() };
        assert_eq!(sealer().open(&empty.name(), sealer().seal(&empty)), Ok(empty));
    }

    /// DISK-1: changes of every bit of an entry, shorter entries, and longer ones.
    #[test]
    fn nothing_else_is_opened() {
        let (record, sealer) = (record(), sealer());
        let (name, bytes) = (record.name(), sealer.seal(&record));
        for bit in 0..bytes.len() * 8 {
            let mut bytes = bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(sealer.open(&name, bytes).is_err(), "bit {bit}");
        }
        for len in 0..bytes.len() {
            assert!(sealer.open(&name, bytes[..len].to_vec()).is_err(), "{len} bytes");
        }
        assert_eq!(sealer.open(&name, [&bytes[..], b"x"].concat()), Err(Damage::Length));
        assert_eq!(sealer.open(&Name::new([1; 32]), bytes.clone()), Err(Damage::Name));
        let other = Sealer::new(&Secret::new([4; 32]));
        assert_eq!(other.open(&name, bytes), Err(Damage::Mac));
    }

    /// Moving the border between request and artifact changes the request.
    #[test]
    fn the_lengths_are_under_the_mac() {
        let (record, sealer) = (record(), sealer());
        let mut bytes = sealer.seal(&record);
        let request = record.request.len() as u64;
        bytes[128..136].copy_from_slice(&(request + 1).to_le_bytes());
        bytes[136..144].copy_from_slice(&(record.artifact.len() as u64 - 1).to_le_bytes());
        assert_eq!(sealer.open(&record.name(), bytes), Err(Damage::Mac));
    }

    /// DISK-2.
    #[test]
    fn lengths_beyond_the_bytes_are_refused() {
        let sealer = sealer();
        for (request, artifact) in [(u64::MAX, 1), (1 << 62, 1 << 62), (u64::MAX, u64::MAX), (4 << 30, 0)] {
            let mut bytes = sealer.seal(&record());
            bytes[128..136].copy_from_slice(&request.to_le_bytes());
            bytes[136..144].copy_from_slice(&artifact.to_le_bytes());
            assert_eq!(sealer.open(&record().name(), bytes), Err(Damage::Length));
        }
    }

    #[test]
    fn a_name_that_is_not_that_of_the_request_is_refused() {
        let (mut record, sealer) = (record(), sealer());
        let name = record.name();
        // An attack with the secret: sealing under another name.
        let mut bytes = sealer.seal(&record);
        record.request = b"something else".to_vec();
        let other = record.name();
        bytes[16..48].copy_from_slice(other.as_bytes());
        sealer.reseal(&mut bytes);
        assert_eq!(sealer.open(&other, bytes.clone()), Err(Damage::Name));
        assert_eq!(sealer.open(&name, bytes), Err(Damage::Name));
    }
}
