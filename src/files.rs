//! Reads files that a user has named, up to an expected size.
//!
//! A name may refer to an endless device, a pipe without a writer, or a file larger than memory. So
//! kind and size are checked before anything is read, and a file that grows meanwhile is read up to
//! the limit.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Number of bytes per read.
const BLOCK: usize = 1 << 16;

/// Opens a regular file of at most `most` bytes, or an end of an open pipe (`/dev/fd/3`, as shells
/// name the output of a command).
///
/// # Errors
/// When it does not exist, is something else, or is larger. The text is for the person who named
/// it.
pub fn open(path: &Path, most: u64) -> io::Result<File> {
    // Checked before opening: opening a pipe would wait for its other end.
    check(&std::fs::metadata(path)?, path, most)?;
    let file = File::open(path)?;
    check(&file.metadata()?, path, most)?;
    Ok(file)
}

fn check(metadata: &Metadata, path: &Path, most: u64) -> io::Result<()> {
    let kind = metadata.file_type();
    let is_open = ["/dev/fd/", "/dev/stdin", "/proc/self/fd/"]
        .iter()
        .any(|open| path.as_os_str().as_encoded_bytes().starts_with(open.as_bytes()));
    let what = match () {
        () if kind.is_file() && metadata.len() <= most => return Ok(()),
        () if kind.is_file() => return Err(too_large(most, Some(metadata.len()))),
        () if kind.is_fifo() && is_open => return Ok(()),
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_dir() => "a folder",
        () if kind.is_socket() => "a socket",
        () => "a device",
    };
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}, not a file")))
}

fn too_large(most: u64, size: Option<u64>) -> io::Error {
    let size = size.map(|size| format!("it has {size} bytes; ")).unwrap_or_default();
    io::Error::new(
        io::ErrorKind::FileTooLarge,
        format!("{size}inputs of more than {most} bytes are not read"),
    )
}

/// Reads text of at most `most` bytes to its end, or to the block with the first zero byte. Text
/// has no zero byte, so the rest need not be read.
///
/// # Errors
/// When it is longer, or reading fails.
pub fn read_text(mut input: impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    loop {
        let start = text.len();
        let read = input.by_ref().take(BLOCK as u64).read_to_end(&mut text)?;
        if text.len() as u64 > most {
            return Err(too_large(most, None));
        }
        if read == 0 || text[start..].contains(&0) {
            return Ok(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_end_is_not_read_to_it() {
        assert_eq!(read_text(&b"text"[..], 4).unwrap(), b"text");
        assert_eq!(read_text(&b"texts"[..], 4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_text(io::repeat(b' '), 1 << 20).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(read_text(io::repeat(0), u64::MAX).unwrap().len(), BLOCK);
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let told = |path: &str, most| open(Path::new(path), most).map(drop).unwrap_err().to_string();
        assert_eq!(told("/dev/zero", u64::MAX), "it is a device, not a file");
        assert_eq!(told("/", u64::MAX), "it is a folder, not a file");
        let program = std::env::current_exe().unwrap();
        open(&program, u64::MAX).unwrap();
        let size = std::fs::metadata(&program).unwrap().len();
        let told = open(&program, size - 1).unwrap_err().to_string();
        assert_eq!(told, format!("it has {size} bytes; inputs of more than {} bytes are not read", size - 1));
    }
}
