//! Names of entries outside the process.
//!
//! In memory a [`Key`] finds an entry with all its variants. Outside, each artifact is an entry of
//! its own with a [`Name`]: a hash of everything that it depends on, the environment and the
//! [`Request`]. The entry contains the request too, which is compared, so two requests with one
//! name cost a compile, never a wrong result.

use crate::key::{Key, hash};

/// Contexts of hashes, which keep their domains apart (BLAKE3's key derivation).
const NAME: &str = "fuseline cache 2026-11 name of an entry";
const ENVIRONMENT: &str = "fuseline cache 2026-11 environment";

hash! {
    /// Identity of an entry outside the process.
    Name
}

hash! {
    /// Identity of everything outside a region that its code depends on: plugin, device, processor,
    /// options, versions.
    Fingerprint
}

impl Fingerprint {
    /// Fingerprint of a description; different descriptions have different ones.
    #[must_use]
    pub fn of(description: &[u8]) -> Fingerprint {
        Fingerprint(blake3::derive_key(ENVIRONMENT, description))
    }
}

/// What an artifact is compiled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// The key of the region, for people: one region may have several artifacts.
    pub region: Key,
    /// The environment.
    pub environment: Fingerprint,
    /// Everything else that it depends on, in an injective encoding.
    pub bytes: &'a [u8],
}

impl Request<'_> {
    /// The name of its entry.
    #[must_use]
    pub fn name(&self) -> Name {
        let mut hasher = blake3::Hasher::new_derive_key(NAME);
        hasher.update(self.environment.as_bytes());
        hasher.update(self.region.as_bytes());
        hasher.update(self.bytes);
        Name(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn names_are_read_as_they_are_written(hash: [u8; 32]) {
            let name = Name::new(hash);
            prop_assert_eq!(Name::parse(&name.to_string()), Some(name));
            prop_assert_eq!(Name::parse(&name.to_string()[1..]), None);
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "..", &"A".repeat(64), &"g".repeat(64), &"0".repeat(65), &"é".repeat(32)] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_depends_on_everything() {
        let request = |region, environment, bytes: &'static [u8]| Request {
            region: Key::new([region; 32]),
            environment: Fingerprint::of(&[environment]),
            bytes,
        };
        let requests = [
            request(0, 0, b"x"),
            request(1, 0, b"x"),
            request(0, 1, b"x"),
            request(0, 0, b"y"),
            request(0, 0, b""),
        ];
        for (index, one) in requests.iter().enumerate() {
            assert!(requests[index + 1..].iter().all(|other| other.name() != one.name()), "{one:?}");
        }
    }
}
