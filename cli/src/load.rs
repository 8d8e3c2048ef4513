//! Reading a program file.

use std::path::Path;
use std::sync::Arc;

use fuseline::fusion::program::Program;
use fuseline::fusion::text::TextModule;
use fuseline::{Bytes, Literal, TensorType, files};

use crate::failure::Failure;

/// The largest program file, in bytes. Its data is base64.
const MAX_TEXT: u64 = 1 << 31;

/// Reads and checks a program; `-` is standard input. A program without a name gets that of its
/// file. A StableHLO module (a file that ends in `.mlir`) becomes the program that applies its
/// function to zeros.
pub(crate) fn program(path: &Path) -> Result<Arc<Program>, Failure> {
    let piped = path.as_os_str() == "-";
    let shown = if piped { "standard input".to_owned() } else { path.display().to_string() };
    let bytes = match piped {
        true => files::read_text(std::io::stdin().lock(), MAX_TEXT),
        false => files::open(path, MAX_TEXT).and_then(|file| files::read_text(file, MAX_TEXT)),
    };
    let bytes = bytes.map_err(|error| Failure::Input(format!("{shown} cannot be read: {error}")))?;
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
            // The message need not repeat the line and column.
            let words = error.to_string();
            let words = match words.split_once(": ") {
                Some((place, rest)) if place.starts_with("line ") => rest,
                _ => &words,
            };
            Err(Failure::Input(format!("{shown}{}: {words}", position.unwrap_or_default())))
        }
    }
}

/// The largest total size of the zeros passed to a module's function. A short type can ask for any
/// size.
const MAX_ZEROS: Bytes = Bytes(1 << 30);

fn module(text: &str, name: &str, shown: &str) -> Result<Program, Failure> {
    let module = TextModule::parse(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Failure::Input(format!("{shown}:{line}:{column}: {}", error.problem()))
    })?;
    let params = module.main().graph().params();
    let bytes = params.iter().map(|ty| ty.bytes()).fold(Bytes(0), Bytes::saturating_add);
    if bytes > MAX_ZEROS {
        return Err(Failure::Input(format!(
            "{shown}: the arguments of the function take {} bytes, which is too much",
            bytes.0
        )));
    }
    let zeros = |ty: &TensorType| Literal::try_zeros(ty.clone()).map(Arc::new);
    let zeros = params.iter().map(zeros).collect::<Option<Vec<_>>>();
    let none = || Failure::Run(format!("{shown}: not enough memory for {} bytes of arguments", bytes.0));
    let zeros = zeros.ok_or_else(none)?;
    let mut program = Program::of_function(name, module.main(), zeros).ok_or_else(|| {
        Failure::run("bug: the zeros and the parameters of a function have different types")
    })?;
    program.source = "StableHLO text, applied to zeros".to_owned();
    Ok(program)
}
