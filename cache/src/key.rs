//! Keys of entries, and the text form of all hashes in this crate.

macro_rules! hash {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name([u8; 32]);

        impl $name {
            /// Wraps a hash.
            #[must_use]
            pub const fn new(hash: [u8; 32]) -> $name {
                $name(hash)
            }

            /// The hash.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }

            /// Parses the output of `Display`: 64 lower-case hexadecimal digits.
            #[must_use]
            pub fn parse(text: &str) -> Option<$name> {
                let digit = |digit: u8| match digit {
                    b'0'..=b'9' => Some(digit - b'0'),
                    b'a'..=b'f' => Some(digit - b'a' + 10),
                    _ => None,
                };
                let mut hash = [0; 32];
                let text: &[u8; 64] = text.as_bytes().try_into().ok()?;
                for (byte, [high, low]) in hash.iter_mut().zip(text.as_chunks().0) {
                    *byte = digit(*high)? << 4 | digit(*low)?;
                }
                Some($name(hash))
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0[..4].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    };
}

pub(crate) use hash;

hash! {
    /// Identity of an entry: a cryptographic hash of 256 bits over the compiled region and the
    /// environment.
    Key
}
