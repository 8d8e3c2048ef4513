//! Reading a program file.

use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use fuseline::fusion::program::Program;
use fuseline::fusion::text::TextModule;
use fuseline::{Bytes, Literal};
use fuseline_cache::disk::open_given;

use crate::failure::Failure;

/// Reads and checks a program; `-` is standard input. A program without a name gets that of its file. A StableHLO module (a
/// file that ends in `.mlir`) becomes the program that applies its function to zeros.
pub(crate) fn program(path: &Path) -> Result<Arc<Program>, Failure> {
    let piped = path.as_os_str() == "-";
    let shown = if piped { "standard input".to_owned() } else { path.display().to_string() };
    let unreadable = |why: &dyn std::fmt::Display| Failure::Input(format!("{shown} cannot be read: {why}"));
    let bytes = if piped {
        whole(std::io::stdin().lock(), 0)
    } else {
        match open_given(path) {
            Ok((file, len)) => whole(file, len),
            // A pipe would be waited for, and a device has no end.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                return Err(unreadable(&format_args!("{error}; `-` reads standard input")));
            }
            Err(error) => Err(error),
        }
    };
    let bytes = bytes.map_err(|error| unreadable(&error))?;
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) => {
            let good = &bytes[..error.valid_up_to()];
            let line = good.iter().filter(|&&byte| byte == b'\n').count() + 1;
            let start = good.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
            let column = String::from_utf8_lossy(&good[start..]).chars().count() + 1;
            return Err(Failure::Input(format!("{shown}:{line}:{column}: the file is not UTF-8 text")));
        }
    };
    let stem = path.file_stem().filter(|_| !piped);
    let name = stem.map_or("program".to_owned(), |stem| stem.to_string_lossy().into_owned());
    if path.extension().is_some_and(|extension| extension == "mlir") {
        return module(text, &name, &shown).map(Arc::new);
    }
    match Program::parse(text) {
        Ok(mut program) => {
            if program.name.is_empty() {
                program.name = name;
            }
            Ok(Arc::new(program))
        }
        Err(error) => {
            let position = error.position(text).map(|(line, column)| format!(":{line}:{column}"));
            // Where the place in words is a line and a column too, it need not be said twice.
            let words = error.to_string();
            let words = match words.split_once(": ") {
                Some((place, rest)) if place.starts_with("line ") => rest,
                _ => &words,
            };
            Err(Failure::Input(format!("{shown}{}: {words}", position.unwrap_or_default())))
        }
    }
}

/// Most bytes of a program file. Its constants are written in words.
const MOST_BYTES: u64 = 1 << 30;

/// All bytes of an input of this length, as far as that is known, unless they are too many.
fn whole(input: impl io::Read, len: u64) -> io::Result<Vec<u8>> {
    let too_long = || {
        let words = format!("a program has at most {MOST_BYTES} bytes");
        io::Error::new(io::ErrorKind::FileTooLarge, words)
    };
    if len > MOST_BYTES {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    input.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST_BYTES { Err(too_long()) } else { Ok(bytes) }
}

/// Most bytes of zeros that a module's function is applied to; a short type can ask for any number of them.
const MOST_ZEROS: Bytes = Bytes(4 << 30);

fn module(text: &str, name: &str, shown: &str) -> Result<Program, Failure> {
    let module = TextModule::parse(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Failure::Input(format!("{shown}:{line}:{column}: {}", error.problem()))
    })?;
    let params = module.main().graph().params();
    let bytes = params.iter().map(|ty| ty.bytes()).fold(Bytes(0), Bytes::saturating_add);
    if bytes > MOST_ZEROS {
        return Err(Failure::Input(format!("{shown}: the arguments of the function take {} bytes", bytes.0)));
    }
    let zeros = params.iter().map(|ty| Arc::new(Literal::zeros(ty.clone()))).collect();
    let mut program = Program::of_function(name, module.main(), zeros)
        .ok_or_else(|| Failure::run("bug: zeros of other types than a function's parameters"))?;
    program.source = "StableHLO text, applied to zeros".to_owned();
    Ok(program)
}
