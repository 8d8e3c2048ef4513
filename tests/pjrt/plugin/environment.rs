//! The environment of stored executables: the loaded plugin and the variables at its load, not the
//! current ones.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use fuseline::pjrt::Plugin;
use fuseline::{Engine, EngineConfig};

use super::{is_right, three};

use crate::support::fakeplugin::{in_child, path, wait_for};
use crate::support::{config, place};

const ROOT: &str = "FUSELINE_TEST_ROOT";
const PLUGIN: &str = "FUSELINE_TEST_PLUGIN";
const FLAGS: &str = "XLA_FLAGS";

fn variable(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(name).unwrap())
}

/// In a child: an engine on the plugin that the environment names, with a disk cache.
fn engine() -> Engine {
    let config: EngineConfig = config().plugin(variable(PLUGIN)).disk_cache(place(&variable(ROOT)));
    config.build().unwrap()
}

fn run(engine: &Engine) {
    is_right(&three(&engine.tensor(&[3.0f32], &[1]).unwrap()).unwrap(), &[3.0]);
}

/// How many entries of regions there are.
fn entries(root: &Path) -> usize {
    std::fs::read_dir(root.join("cache/v1/entries")).unwrap().count()
}

/// If the environment is unknown for that reason, everything works, and nothing is stored.
#[track_caller]
fn keeps_nothing(words: &str) {
    let engine = engine();
    let before = entries(&variable(ROOT));
    run(&engine);
    assert!(engine.cache_environment().is_none());
    let why = engine.why_no_disk_cache().expect("it is off").to_owned();
    assert!(why.contains(words), "{why}");
    let counters = engine.counters();
    assert_eq!((counters.loads, counters.stores), (0, 0), "{counters:?}");
    drop(engine);
    assert_eq!(entries(&variable(ROOT)), before);
}

fn set(name: &str, value: &str) {
    // SAFETY: the process belongs to this test, and no other thread reads variables.
    unsafe { std::env::set_var(name, value) }
}

/// A child also runs the cases before its own, and must not repeat its parent's preparations.
fn is_child() -> bool {
    std::env::var_os(ROOT).is_some()
}

/// A copy of the plugin in a folder of the test.
fn copied(folder: &Path) -> PathBuf {
    let copy = folder.join("plugin.so");
    if !is_child() {
        std::fs::copy(path(), &copy).unwrap();
    }
    copy
}

/// Changes the bytes of the file, without an effect for the loader.
fn add_byte(file: &Path) {
    std::fs::OpenOptions::new().append(true).open(file).unwrap().write_all(&[0]).unwrap();
}

/// Runs a part in a process of its own, with a plugin and a folder.
#[track_caller]
fn child(test: &str, case: &str, more: &[(&str, &str)], part: impl FnOnce()) -> Option<Output> {
    let root = tempfile::tempdir().unwrap();
    let plugin = path();
    let mut vars = vec![(ROOT, root.path().to_str().unwrap()), (PLUGIN, plugin.to_str().unwrap())];
    vars.extend(more);
    let output = in_child(test, case, &vars, part)?;
    assert!(output.status.success(), "{case}: {output:?}");
    Some(output)
}

/// Binds the calling thread and those that it starts to one processor. False if there is only one.
fn on_one_processor() -> bool {
    if std::thread::available_parallelism().unwrap().get() == 1 {
        return false;
    }
    // SAFETY: zeros are an empty processor set.
    let mut all: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: the set has the given size.
    assert_eq!(unsafe { libc::sched_getaffinity(0, size, &raw mut all) }, 0);
    // SAFETY: the number is within the set.
    let first = (0..1024).find(|&cpu| unsafe { libc::CPU_ISSET(cpu, &all) }).unwrap();
    // SAFETY: as above.
    let mut one: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { libc::CPU_SET(first, &mut one) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::sched_setaffinity(0, size, &raw const one) }, 0);
    true
}

/// Everything that code depends on makes another environment: the plugin's bytes, each variable and
/// the contents of a file that it names, the number of threads.
#[test]
fn every_part_of_the_environment_counts() {
    const TEST: &str = "plugin::environment::every_part_of_the_environment_counts";
    let folder = tempfile::tempdir().unwrap();
    let other = copied(folder.path());
    if !is_child() {
        add_byte(&other);
    }
    let flags = folder.path().join("flags");
    let told = |case: &str, more: &[(&str, &str)], prepare: &dyn Fn()| {
        let output = child(TEST, case, more, || {
            prepare();
            println!("environment: {}", engine().cache_environment().unwrap().fingerprint());
        })?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let words = text.lines().find_map(|line| line.split_once("environment: ")).map(|(_, words)| words);
        Some(words.expect("it says so").to_owned())
    };
    let mut all = Vec::new();
    all.push(told("nothing else", &[], &|| ()));
    let again = told("nothing else again", &[], &|| ());
    all.push(told("another plugin", &[(PLUGIN, other.to_str().unwrap())], &|| ()));
    for name in [
        "XLA_FLAGS",
        "TF_XLA_FLAGS",
        "LIBTPU_INIT_ARGS",
        "PJRT_NPROC",
        "NPROC",
        "OMP_NUM_THREADS",
        "NVIDIA_TF32_OVERRIDE",
        "ONEDNN_MAX_CPU_ISA",
        "DNNL_MAX_CPU_ISA",
    ] {
        all.push(told(name, &[(name, "--no=1")], &|| ()));
    }
    for text in ["--xla_a=1", "--xla_a=2"] {
        if !is_child() {
            std::fs::write(&flags, text).unwrap();
        }
        all.push(told(text, &[(FLAGS, flags.to_str().unwrap())], &|| ()));
    }
    if std::thread::available_parallelism().unwrap().get() > 1 {
        all.push(told("one processor", &[], &|| assert!(on_one_processor())));
    } else {
        println!("skipped: no second processor");
    }
    let Some(found): Option<Vec<String>> = all.into_iter().collect() else { return };
    assert_eq!(again.as_ref(), Some(&found[0]));
    let different: BTreeSet<&String> = found.iter().collect();
    assert_eq!(different.len(), found.len(), "{found:?}");
}

/// The environment names the plugin and the processor.
#[test]
fn the_environment_says_what_plugin_and_processor_it_is() {
    const TEST: &str = "plugin::environment::the_environment_says_what_plugin_and_processor_it_is";
    child(TEST, "parts", &[], || {
        let environment = engine().cache_environment().unwrap();
        let part = |name: &str| environment.parts().find(|part| part.0 == name).map(|part| part.1.to_owned());
        let digest = blake3::hash(&std::fs::read(path()).unwrap());
        assert_eq!(part("plugin file"), Some(digest.to_hex().to_string()));
        let threads = std::thread::available_parallelism().unwrap().to_string();
        assert!(part("threads").is_some_and(|said| said.split(' ').next() == Some(&*threads)));
        assert_eq!(part("architecture").as_deref(), Some(std::env::consts::ARCH));
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        for name in ["model name", "CPU part", "isa"] {
            let said = info.lines().filter_map(|line| line.split_once(':')).find(|row| row.0.trim() == name);
            let said = said.map(|row| row.1.trim().to_owned());
            assert_eq!(part(&format!("processor {name}")), said, "{environment:?}");
        }
        #[cfg(target_arch = "x86_64")]
        assert!(part("processor extensions").is_some_and(|all| all.split(' ').any(|one| one == "sse2")));
    });
}

/// `pip install -U` while a program has the plugin loaded: its compiles belong to the loaded one.
#[test]
fn a_plugin_that_is_replaced_is_the_one_that_was_loaded() {
    const TEST: &str = "plugin::environment::a_plugin_that_is_replaced_is_the_one_that_was_loaded";
    let folder = tempfile::tempdir().unwrap();
    for case in ["renamed over", "removed", "moved aside"] {
        let plugin = copied(folder.path());
        child(TEST, case, &[(PLUGIN, plugin.to_str().unwrap())], || {
            let plugin = variable(PLUGIN);
            let digest = blake3::hash(&std::fs::read(&plugin).unwrap()).to_hex().to_string();
            Plugin::open(&plugin).unwrap();
            let next = plugin.with_extension("next");
            std::fs::copy(&plugin, &next).unwrap();
            add_byte(&next);
            match case {
                "removed" => std::fs::remove_file(&plugin).unwrap(),
                "moved aside" => {
                    // Like pip: the old files are removed once everything has succeeded.
                    std::fs::rename(&plugin, plugin.with_extension("old")).unwrap();
                    std::fs::remove_file(plugin.with_extension("old")).unwrap();
                }
                _ => {}
            }
            std::fs::rename(&next, &plugin).unwrap();
            let opened = engine();
            run(&opened);
            let environment = opened.cache_environment().unwrap();
            let said = environment.parts().find(|part| part.0 == "plugin file").map(|part| part.1.to_owned());
            assert_eq!(said, Some(digest));
            wait_for(|| opened.counters().stores == 1, || format!("{:?}", opened.counters()));
        });
    }
}

/// Mapped memory changes when the file is written: it is neither version.
#[test]
fn a_plugin_that_is_written_to_keeps_nothing() {
    const TEST: &str = "plugin::environment::a_plugin_that_is_written_to_keeps_nothing";
    let folder = tempfile::tempdir().unwrap();
    let plugin = copied(folder.path());
    child(TEST, "written to", &[(PLUGIN, plugin.to_str().unwrap())], || {
        let plugin = variable(PLUGIN);
        Plugin::open(&plugin).unwrap();
        add_byte(&plugin);
        keeps_nothing("written to since it was loaded");
    });
}

/// Flags that are set while the plugin is loaded may or may not have been read.
#[test]
fn variables_that_change_before_the_first_compile_keep_nothing() {
    const TEST: &str = "plugin::environment::variables_that_change_before_the_first_compile_keep_nothing";
    const WORDS: &str = "changed after it was loaded";
    child(TEST, "set", &[], || {
        Plugin::open(variable(PLUGIN)).unwrap();
        set(FLAGS, "--xla_late=1");
        keeps_nothing(WORDS);
    });
    // Even if they have their old values when they are read.
    child(TEST, "set for a while", &[], || {
        let plugin = Plugin::open(variable(PLUGIN)).unwrap();
        set("LIBTPU_INIT_ARGS", "--late=1");
        let client = plugin.client(&fuseline::pjrt::ClientOptions::new()).unwrap();
        // SAFETY: as in `set`.
        unsafe { std::env::remove_var("LIBTPU_INIT_ARGS") };
        drop(client);
        keeps_nothing(WORDS);
    });
    let folder = tempfile::tempdir().unwrap();
    let flags = folder.path().join("flags");
    if !is_child() {
        std::fs::write(&flags, "--xla_a=1").unwrap();
    }
    child(TEST, "a file", &[(FLAGS, flags.to_str().unwrap())], || {
        Plugin::open(variable(PLUGIN)).unwrap();
        std::fs::write(variable(FLAGS), "--xla_a=2").unwrap();
        keeps_nothing(WORDS);
    });
}

/// Flags that are set after XLA has read its own have no effect.
#[test]
fn variables_that_change_later_are_not_in_effect() {
    const TEST: &str = "plugin::environment::variables_that_change_later_are_not_in_effect";
    child(TEST, "later", &[(FLAGS, "--xla_a=1")], || {
        let first = engine();
        run(&first);
        let environment = first.cache_environment().unwrap();
        drop(first);
        set(FLAGS, "--xla_a=2");
        let second = engine();
        run(&second);
        assert_eq!(second.cache_environment().unwrap(), environment);
        assert!(environment.parts().any(|part| part == ("variable XLA_FLAGS", "--xla_a=1")));
        let counters = second.counters();
        assert_eq!((counters.compiles, counters.loads), (0, 1), "{counters:?}");
    });
    child(TEST, "read anew", &[(FLAGS, "--xla_flags_reset=true")], || {
        let first = engine();
        run(&first);
        // The entry is written after the program has its value.
        wait_for(|| first.counters().stores == 1, || format!("{:?}", first.counters()));
        drop(first);
        set(FLAGS, "--xla_a=2");
        keeps_nothing("changed after it was loaded");
    });
}

/// A variable that names an endless file causes neither a wait nor a guess.
#[test]
fn variables_that_name_pipes_keep_nothing() {
    const TEST: &str = "plugin::environment::variables_that_name_pipes_keep_nothing";
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
    child(TEST, "a pipe", &[(FLAGS, pipe.to_str().unwrap())], || keeps_nothing("XLA_FLAGS names"));
}
