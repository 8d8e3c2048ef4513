//! The binary interface: symbols and layouts match the committed lists (CAPI-5).
//!
//! `FUSELINE_BLESS=1` rewrites the lists, which is enough for additions. A removal or change also
//! needs another generation in `build.rs` and another major version.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod support;

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use object::read::elf::{ElfFile64, Sym as _};
use tempfile::TempDir;

fn compare(name: &str, made: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("abi").join(name);
    if std::env::var_os("FUSELINE_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, made).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    let gone: Vec<&str> = found.lines().filter(|line| made.lines().all(|other| other != *line)).collect();
    let new: Vec<&str> = made.lines().filter(|line| found.lines().all(|other| other != *line)).collect();
    assert!(
        found == made,
        "capi/abi/{name}: gone {gone:#?}, new {new:#?}; if that is meant, run this test with FUSELINE_BLESS=1"
    );
}

#[test]
fn symbols_stay() {
    let library = std::env::current_exe().unwrap().with_file_name("libfuseline.so");
    let bytes = std::fs::read(&library).unwrap();
    let elf = ElfFile64::<object::Endianness>::parse(&*bytes).unwrap();
    let (endian, sections) = (elf.endian(), elf.elf_section_table());
    let versions = sections.versions(endian, &*bytes).unwrap();
    let symbols = sections.symbols(endian, &*bytes, object::elf::SHT_DYNSYM).unwrap();
    let mut made = Vec::new();
    for (index, symbol) in symbols.enumerate() {
        if symbol.is_undefined(endian) || symbol.st_type() != object::elf::STT_FUNC {
            continue;
        }
        let name = String::from_utf8_lossy(symbol.name(endian, symbols.strings()).unwrap()).into_owned();
        let version = versions.as_ref().and_then(|versions| {
            let version = versions.version(versions.version_index(endian, index)).ok()??;
            Some(String::from_utf8_lossy(version.name()).into_owned())
        });
        made.push((name, version));
    }
    made.sort();
    if made.iter().all(|(_, version)| version.is_none()) {
        println!("skipped: no symbol versions: the linker that is here gives none; names are compared");
    }
    let mut text = String::new();
    for (name, version) in made {
        assert!(name.starts_with("fuseline_"), "{name} is exported");
        assert_eq!(version.as_deref().unwrap_or("libfuseline.so.0"), "libfuseline.so.0", "{name}");
        writeln!(text, "{name}").unwrap();
    }
    compare("symbols.txt", &text);
}

/// Sizes and offsets of every structure, as a C compiler computes them.
#[test]
fn layouts_stay() {
    let header = support::header();
    let mut program =
        String::from("#include <fuseline.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n");
    let (mut open, mut count): (Option<&str>, usize) = (None, 0);
    for line in header.lines() {
        let name = ["typedef struct ", "typedef union "]
            .iter()
            .find_map(|start| line.strip_prefix(start)?.strip_suffix(" {"));
        if let Some(name) = name {
            open = Some(name);
            count += 1;
            writeln!(program, "printf(\"{name} %zu aligned %zu\\n\", sizeof({name}), _Alignof({name}));")
                .unwrap();
        } else if line.starts_with('}') {
            open = None;
        } else if let Some(name) =
            open.filter(|_| line.ends_with(';') && line.starts_with("  ") && !line.starts_with("   "))
        {
            let member = match line.split_once("(*") {
                Some((_, rest)) => rest.split(')').next().unwrap(),
                None => {
                    line.trim_end_matches(';').split('[').next().unwrap().rsplit([' ', '*']).next().unwrap()
                }
            };
            writeln!(
                program,
                "printf(\"{name}.{member} at %zu, %zu\\n\", offsetof({name}, {member}), sizeof((({name} *)0)->{member}));"
            )
            .unwrap();
        }
    }
    // Function pointers with many parameters span several lines.
    for member in ["results", "run"] {
        writeln!(
            program,
            "printf(\"fuseline_handler.{member} at %zu\\n\", offsetof(fuseline_handler, {member}));"
        )
        .unwrap();
    }
    program.push_str("return 0;\n}\n");
    assert!(count >= 10, "{count} structures are found");
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("fuseline.h"), &header).unwrap();
    let (source, binary) = (folder.path().join("layout.c"), folder.path().join("layout"));
    std::fs::write(&source, program).unwrap();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-I"]).arg(folder.path()).arg(&source).arg("-o").arg(&binary);
    let built = match command.output() {
        Ok(built) => built,
        Err(error) => return println!("skipped: no C compiler: {error}"),
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let made = Command::new(&binary).output().unwrap();
    if cfg!(target_pointer_width = "64") {
        compare("layouts-64.txt", &String::from_utf8(made.stdout).unwrap());
    }
}
