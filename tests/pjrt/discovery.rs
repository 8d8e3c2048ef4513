//! Finding and opening plugins, in artificial folders and environments.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use fuseline::pjrt::discover::{Discovery, Source, Sources, Verdict};
use fuseline::pjrt::{OpenFault, Plugin};

use crate::fixtures::TempDir;

/// The tests' stand-in for a library: its first bytes, which no loader accepts.
const ELF: &[u8] = b"\x7fELF and nothing else";

#[track_caller]
fn fault(path: &Path) -> OpenFault {
    let error = Plugin::open(path).expect_err("cannot be opened");
    assert_eq!(error.path(), path);
    let text = error.to_string();
    assert!(text.contains(&path.display().to_string()) && !text.contains('\n'), "{text}");
    error.fault().clone()
}

#[test]
fn files_that_are_no_plugins_are_told_apart() {
    let dir = TempDir::new("faults");
    let missing = dir.path().join("missing.so");
    let OpenFault::Missing(words) = fault(&missing) else { panic!("{:?}", fault(&missing)) };
    assert!(words.contains("No such file"), "{words}");
    assert_eq!(fault(dir.path()), OpenFault::Missing("it is not a file".into()));
    for (name, content) in [("empty.so", &b""[..]), ("short.so", b"\x7fEL"), ("text.so", b"#!/bin/sh\n")] {
        assert_eq!(fault(&dir.file(name, content)), OpenFault::NotALibrary, "{name}");
    }
    let truncated = dir.file("truncated.so", ELF);
    assert!(matches!(fault(&truncated), OpenFault::CannotLoad(_)), "{:?}", fault(&truncated));
    let error = Plugin::open(&missing).expect_err("missing");
    assert_eq!(
        error.to_string(),
        format!(
            "the PJRT plugin {} cannot be read: No such file or directory (os error 2)",
            missing.display()
        )
    );
    assert_eq!(fuseline::pjrt::Error::from(error).code(), fuseline::pjrt::Code::NotFound);
}

/// Compiles C to a shared library. Prints a message and returns `None` without a compiler.
fn library(dir: &TempDir, name: &str, source: &str) -> Option<PathBuf> {
    let from = dir.file(&format!("{name}.c"), source.as_bytes());
    let to = dir.path().join(format!("{name}.so"));
    match Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&to).arg(&from).status() {
        Ok(status) if status.success() => Some(to),
        other => {
            println!("skipped: no C compiler: it would make {name}, and says {other:?}");
            None
        }
    }
}

#[test]
fn libraries_that_are_no_plugins_are_told_apart() {
    let dir = TempDir::new("libraries");
    if let Some(path) = library(&dir, "other", "int answer(void) { return 42; }") {
        assert_eq!(fault(&path), OpenFault::NoEntryPoint);
        let text = Plugin::open(&path).expect_err("no symbol").to_string();
        assert!(text.ends_with("is not a PJRT plugin: the library has no symbol GetPjrtApi"), "{text}");
    }
    if let Some(path) = library(&dir, "needy", "int absent(void); int GetPjrtApi(void) { return absent(); }")
    {
        let OpenFault::CannotLoad(words) = fault(&path) else { panic!("{:?}", fault(&path)) };
        assert!(words.contains("absent"), "{words}");
    }
    if let Some(path) = library(&dir, "null", "void *GetPjrtApi(void) { return 0; }") {
        assert!(matches!(fault(&path), OpenFault::BadTable(_)));
    }
    // Another major version, 40 bytes long: size, extensions, and the version's size, extensions,
    // major and minor.
    let old = "struct { unsigned long size; void *ext; unsigned long vsize; void *vext; int major, minor; } table = \
               { 40, 0, 24, 0, 3, 7 }; void *GetPjrtApi(void) { return &table; }";
    if let Some(path) = library(&dir, "major", old) {
        assert!(
            matches!(fault(&path), OpenFault::Version { theirs, missing } if theirs.major == 3 && missing.is_empty())
        );
        let text = Plugin::open(&path).expect_err("major 3").to_string();
        assert!(
            text.ends_with("uses PJRT API 3.7, but this build uses 0.54: the major versions must match"),
            "{text}"
        );
    }
    // Every function fails with an error, and counts. Initialization is not retried.
    let failing = "static int calls; static char error;
        static void *fail(void *args) { (void)args; calls++; return &error; }
        static void ignore(void *args) { (void)args; }
        static void message(void **args) { args[3] = calls == 1 ? \"first\" : \"again\"; args[4] = (void *)5; }
        static void *code(int *args) { args[6] = 14; return 0; }
        static struct { unsigned long size; void *ext; unsigned long vsize; void *vext; int major, minor;
                        void *functions[100]; } table = { 840, 0, 24, 0, 0, 54 };
        void *GetPjrtApi(void) {
            for (int i = 3; i < 100; i++) table.functions[i] = fail;
            table.functions[0] = ignore; table.functions[1] = message; table.functions[2] = code;
            return &table;
        }";
    if let Some(path) = library(&dir, "failing", failing) {
        for _ in 0..2 {
            let OpenFault::Initialise(error) = fault(&path) else { panic!("{:?}", fault(&path)) };
            assert_eq!((error.message(), error.code()), ("first", fuseline::pjrt::Code::Unavailable));
        }
        let link = dir.path().join("link.so");
        std::fs::hard_link(&path, &link).expect("a hard link");
        assert!(
            matches!(fault(&link), OpenFault::Initialise(error) if error.message() == "first"),
            "by another path"
        );
    }
}

fn of(found: &Discovery) -> Vec<(Source, Option<&str>, Option<&Path>, bool)> {
    found
        .candidates()
        .iter()
        .map(|one| (one.source, one.name.as_deref(), one.path.as_deref(), one.verdict == Verdict::Untried))
        .collect()
}

fn reason(found: &Discovery, index: usize) -> &str {
    match &found.candidates()[index].verdict {
        Verdict::Unusable(reason) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn nothing_is_found_where_nothing_is_looked_for() {
    let mut found = Discovery::look(&Sources::default());
    assert_eq!(found.candidates(), []);
    assert_eq!(found.notes().len(), 5);
    let error = found.first_usable().expect_err("nothing");
    let text = error.to_string();
    assert!(text.starts_with("no usable PJRT plugin was found\n"), "{text}");
    assert!(text.contains("  FUSELINE_PJRT_PLUGIN: not set\n"), "{text}");
}

#[test]
fn sources_come_in_order() {
    let dir = TempDir::new("order");
    let file = |name: &str| dir.file(name, ELF);
    let (explicit, variable, listed) = (file("explicit.so"), file("variable.so"), file("listed.so"));
    let fetched = [file("setup/plugins/a/one.so"), file("setup/plugins/b/two.so")];
    dir.file("setup/plugins/b/readme.txt", b"not a library");
    let python = python(
        &dir,
        &format!("print('noise')\nprint('fuseline-pjrt-plugins:[[\"p\", {:?}]]')", file("py.so")),
    );
    let sources = Sources {
        explicit: Some(explicit.clone()),
        plugin_variable: Some(variable.clone().into()),
        names_and_paths: Some(format!("cpu:{}", listed.display()).into()),
        python: Some(python),
        setup_dir: Some(dir.path().join("setup")),
    };
    let mut found = Discovery::look(&sources);
    let expected = [
        (Source::Explicit, None, Some(explicit.as_path()), true),
        (Source::PluginVariable, None, Some(variable.as_path()), true),
        (Source::NamesAndPaths, Some("cpu"), Some(listed.as_path()), true),
        (Source::Python, Some("p"), Some(&dir.path().join("py.so")), true),
        (Source::Setup, Some("a"), Some(fetched[0].as_path()), true),
        (Source::Setup, Some("b"), Some(fetched[1].as_path()), true),
    ];
    assert_eq!(of(&found), expected);
    assert_eq!(found.notes(), []);
    // The user named one: no other is tried, even if it cannot be loaded.
    let error = found.first_usable().expect_err("not a library");
    assert!(error.to_string().starts_with("the requested PJRT plugin cannot be used\n"), "{error}");
    let tried = error.discovery().candidates().iter().filter(|one| one.verdict != Verdict::Untried).count();
    assert_eq!(tried, 1);
    let mut found = Discovery::look(&Sources { explicit: None, ..sources.clone() });
    let text = found.first_usable().expect_err("not a library").to_string();
    assert!(text.contains("variable.so"), "{text}");
    // The user named none: all are tried.
    let mut found = Discovery::look(&Sources { explicit: None, plugin_variable: None, ..sources });
    let text = found.first_usable().expect_err("no library").to_string();
    for name in ["listed.so", "py.so", "one.so", "two.so"] {
        assert!(text.contains(name), "{text}");
    }
    assert!(found.candidates().iter().all(|one| matches!(one.verdict, Verdict::Unusable(_))));
}

#[test]
fn malformed_lists_are_explained_entry_by_entry() {
    let dir = TempDir::new("malformed");
    let good = dir.file("with:colon.so", ELF);
    let list = format!("nocolon,:/path,name:,,x:/no/such/file.so, cpu : {} ", good.display());
    let sources = Sources { names_and_paths: Some(list.into()), ..Sources::default() };
    let found = Discovery::look(&sources);
    assert_eq!(found.candidates().len(), 6);
    assert_eq!(reason(&found, 0), "the entry \"nocolon\" has no colon; it should read name:path");
    assert_eq!(reason(&found, 1), "the entry \":/path\" has no name; it should read name:path");
    assert_eq!(reason(&found, 2), "the entry \"name:\" has no path; it should read name:path");
    assert_eq!(reason(&found, 3), "the entry \"\" has no colon; it should read name:path");
    assert!(reason(&found, 4).contains("/no/such/file.so cannot be read"), "{}", reason(&found, 4));
    let last = &found.candidates()[5];
    assert_eq!((last.name.as_deref(), last.path.as_deref()), (Some("cpu"), Some(good.as_path())));
    assert_eq!(last.verdict, Verdict::Untried);
    let lines = found.to_string();
    assert!(lines.contains("PJRT_NAMES_AND_LIBRARY_PATHS: the entry \"nocolon\" has no colon"), "{lines}");
    let bad = OsString::from_vec(b"cpu:/\xff.so".to_vec());
    let found = Discovery::look(&Sources { names_and_paths: Some(bad), ..Sources::default() });
    assert!(reason(&found, 0).ends_with("is not UTF-8"), "{}", reason(&found, 0));
}

/// A stand-in for Python that runs `script` instead of its arguments.
fn python(dir: &TempDir, script: &str) -> PathBuf {
    let script_file = dir.file("script.py", script.as_bytes());
    let wrapper = format!("#!/bin/sh\nexec python3 {}\n", script_file.display());
    executable(dir.file("python", wrapper.as_bytes()))
}

fn executable(path: PathBuf) -> PathBuf {
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
    path
}

fn note(found: &Discovery, source: Source) -> &str {
    found.notes().iter().find(|row| row.0 == source).map(|row| row.1.as_str()).expect("a note")
}

#[test]
fn python_may_be_absent_silent_or_mad() {
    let dir = TempDir::new("python");
    let look = |program: PathBuf| Discovery::look(&Sources { python: Some(program), ..Sources::default() });
    let found = look("/no/such/python".into());
    assert!(note(&found, Source::Python).starts_with("/no/such/python could not be queried: No such file"));
    let silent = executable(dir.file("silent", b"#!/bin/sh\nexit 0\n"));
    assert!(note(&look(silent), Source::Python).ends_with("could not be queried: it did not answer"));
    let mad = executable(dir.file("mad", b"#!/bin/sh\necho 'fuseline-pjrt-plugins:{\"not\": \"a list\"}'\n"));
    assert!(note(&look(mad), Source::Python).contains("could not be queried: "));
    let poor = executable(dir.file("poor", b"#!/bin/sh\necho 'fuseline-pjrt-plugins:[]'\n"));
    assert!(note(&look(poor), Source::Python).ends_with("finds none"));
}

#[test]
#[ignore = "takes the 10 seconds that Python is given"]
fn python_may_not_answer_at_all() {
    let dir = TempDir::new("slow");
    let slow = executable(dir.file("slow", b"#!/bin/sh\nsleep 30\n"));
    let start = std::time::Instant::now();
    let found = Discovery::look(&Sources { python: Some(slow), ..Sources::default() });
    assert!(note(&found, Source::Python).ends_with("could not be queried: it took too long"));
    assert!(start.elapsed().as_secs() < 15);
}

#[test]
fn python_lists_packages_without_importing_them() {
    if Command::new("python3").arg("-c").arg("").status().is_err() {
        return println!("skipped: no python3");
    }
    let dir = TempDir::new("packages");
    let bomb = b"raise SystemExit('a plugin package was imported')\n";
    let expected = [
        ("xla_plugins.fake_cpu", dir.file("site/xla_plugins/fake_cpu/fake_cpu.so", ELF)),
        ("jax_plugins.fake_gpu", dir.file("site/jax_plugins/fake_gpu/plugin.so", ELF)),
        ("libtpu", dir.file("site/libtpu/libtpu.so", ELF)),
        ("fastatomstruct_xla_cpu", dir.file("site/fastatomstruct_xla_cpu/libpjrt_cpu.so", ELF)),
        ("xla_plugins.xla_cpu_pjrt", dir.file("site/xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so", ELF)),
        ("lammps_jax_pjrt_cpu", dir.file("site/lammps_jax_pjrt_cpu/plugin.so", ELF)),
    ];
    dir.file("site/fastatomstruct_xla_cpu/__init__.py", bomb);
    dir.file("site/lammps_jax_pjrt_cpu/__init__.py", bomb);
    dir.file("site/xla_plugins/fake_cpu/__init__.py", bomb);
    dir.file("site/jax_plugins/fake_gpu/__init__.py", bomb);
    dir.file("site/libtpu/__init__.py", bomb);
    dir.file("site/jax_plugins/fake_gpu/_native.cpython-311-x86_64-linux-gnu.so", ELF);
    dir.file("site/jax_plugins/fake_gpu/_native.abi3.so", ELF);
    dir.file("site/jax_plugins/not_a_folder", b"");
    // A module in the current folder must not run either.
    dir.file("json.py", bomb);
    let wrapper = format!(
        "#!/bin/sh\ncd {}\nPYTHONPATH={} exec python3 \"$@\"\n",
        dir.path().display(),
        dir.path().join("site").display()
    );
    let program = executable(dir.file("python", wrapper.as_bytes()));
    let found = Discovery::look(&Sources { python: Some(program), ..Sources::default() });
    let ours = |one: &&(Source, Option<&str>, Option<&Path>, bool)| {
        one.2.is_some_and(|path| path.starts_with(dir.path()))
    };
    let listed: Vec<_> = of(&found)
        .iter()
        .filter(ours)
        .map(|one| (one.1.expect("a name").to_owned(), one.2.expect("a path").to_owned()))
        .collect();
    assert_eq!(listed, expected.map(|(name, path)| (name.to_owned(), path)), "{found}");
}

#[test]
fn the_first_usable_one_is_taken() {
    let Some(plugin) = crate::fixtures::plugin() else { return };
    let dir = TempDir::new("usable");
    let broken = dir.file("broken.so", ELF);
    let real = plugin.path();
    let list = format!("gone:/no/such.so,broken:{},good:{}", broken.display(), real.display());
    dir.file("setup/plugins/never/tried.so", ELF);
    let sources = Sources {
        names_and_paths: Some(list.into()),
        setup_dir: Some(dir.path().join("setup")),
        ..Sources::default()
    };
    let mut found = Discovery::look(&sources);
    assert_eq!(found.first_usable().expect("the third"), plugin);
    let verdicts: Vec<_> = found.candidates().iter().map(|one| &one.verdict).collect();
    assert!(matches!(verdicts[0], Verdict::Unusable(_)));
    assert!(matches!(verdicts[1], Verdict::Unusable(_)));
    assert_eq!(verdicts[2], &Verdict::Usable(plugin));
    assert_eq!(verdicts[3], &Verdict::Untried, "loaded though it was not needed");
    let text = found.to_string();
    assert!(
        text.contains(&format!("good: {} is usable, API {}", real.display(), plugin.api_version())),
        "{text}"
    );
    assert!(text.contains("tried.so was not tried"), "{text}");
    found.try_all();
    assert!(matches!(found.candidates()[3].verdict, Verdict::Unusable(_)));
    // An explicit path takes precedence over the variable.
    let sources = Sources::default().with_explicit(Some(real.to_owned()));
    let sources = Sources { plugin_variable: Some(broken.into()), ..sources };
    assert_eq!(Discovery::look(&sources).first_usable().expect("the explicit one"), plugin);
}
