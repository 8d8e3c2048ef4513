//! `fuseline cache` as users see it: commands in, exit status and text out, with a folder for each
//! test.
//!
//! The plugin that is found fills the folders. Without one, all tests skip with a message except
//! those of an empty cache.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fuseline::{DiskCacheConfig, Engine, Result};
use serde_json::Value;

use crate::answer::Answer;
use crate::support;

/// A cache of one user, with its home folder.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Home {
        Home(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn place(&self) -> DiskCacheConfig {
        support::place(self.0.path())
    }

    fn tool(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fuseline"));
        command.stdin(Stdio::null());
        command.env_remove("FUSELINE_CACHE").env_remove("FUSELINE_CACHE_BUNDLE_KEY_FILE");
        command.env("FUSELINE_CACHE_DIR", self.path("cache"));
        command.env("FUSELINE_CACHE_KEY_FILE", self.path("state/cache.key"));
        command
    }

    fn cache(&self, arguments: &[&str]) -> Answer {
        Answer::of(self.tool().arg("cache").args(arguments).output().expect("the tool starts"))
    }

    fn json(&self, arguments: &[&str]) -> Value {
        self.cache(&[arguments, &["--json"]].concat()).ends_with(0).json()
    }

    fn entries(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path("cache/v1/entries")).unwrap();
        let mut entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
        entries.sort();
        entries
    }

    /// The file of an executable.
    fn executable(&self) -> PathBuf {
        let listed = self.json(&["ls"]);
        self.path("cache/v1/entries").join(listed["entries"][0]["name"].as_str().unwrap())
    }
}

/// A program of two regions.
fn program(engine: &Engine) -> Result<Vec<f32>> {
    let x = engine.tensor(&[0.1f32, 0.2, 0.3], &[3])?;
    let mut numbers = ((x.tanh()? * &x)? + &x)?.to_vec::<f32>()?;
    numbers.extend((x.exp()? - &x)?.to_vec::<f32>()?);
    Ok(numbers)
}

/// A manifest of the program, or `None` without a plugin.
fn manifest(root: &Path) -> Option<String> {
    let path = root.join("run.jsonl");
    let engine = support::plugin(support::config().without_disk_cache().manifest(&path))?;
    program(&engine).unwrap();
    drop(engine);
    Some(path.into_os_string().into_string().expect("UTF-8"))
}

/// A home whose cache has the program's executables.
fn warm() -> Option<Home> {
    let home = Home::new();
    let manifest = manifest(home.0.path())?;
    home.cache(&["warm", &manifest]).ends_with(0);
    Some(home)
}

/// Runs the program in cache-only mode.
fn runs(home: &Home) -> Result<Vec<f32>> {
    program(&support::config().disk_cache(home.place()).cache_only(true).build()?)
}

#[test]
fn where_there_is_no_cache_none_is_made() {
    let home = Home::new();
    for command in ["ls", "stats", "verify"] {
        home.cache(&[command]).ends_with(0).mentions(&["no cache yet"]);
        home.json(&[command]);
    }
    home.cache(&["prune", "--all"]).ends_with(0);
    home.cache(&["explain", "00"]).ends_with(1).mentions(&["no cache yet"]);
    home.cache(&["export", "x", "--key-file", "y"]).ends_with(1);
    assert!(!home.path("cache").exists() && !home.path("state").exists());
}

#[test]
fn command_lines_that_are_wrong_end_with_2() {
    let home = Home::new();
    for line in [
        &["prune"][..],
        &["prune", "--dry-run"],
        &["prune", "--max-size", "many"],
        &["prune", "--max-age", "7"],
        &["explain", "xyz"],
        &["export", "file"],
        &["import", "file"],
        &["warm", "run.jsonl", "--jobs", "0"],
        &["warm", "run.jsonl", "--target-option", "a=b"],
        &["warm", "run.jsonl", "--target", "tpu", "--target-option", "a"],
    ] {
        home.cache(line).ends_with(2);
    }
}

#[test]
fn manifests_that_are_none_are_told_with_their_lines() {
    let home = Home::new();
    let path = home.path("run.jsonl");
    std::fs::write(&path, "{\"fuseline_manifest\":1,\"numerics\":\"fast\",\"replicas\":1}\n{}\n").unwrap();
    let path = path.to_str().unwrap();
    home.cache(&["warm", path]).ends_with(1).mentions(&["run.jsonl:2: `request` must be"]);
    let document = home.cache(&["warm", path, "--json"]).ends_with(1).json();
    assert_eq!(document["status"], "failed");
    home.cache(&["warm", "/no/such/file"]).ends_with(1).mentions(&["cannot be opened"]);
}

#[test]
fn a_target_is_compiled_for_where_it_is_not() {
    let home = Home::new();
    let plugin = support::fakeplugin::path();
    let config = || support::config().plugin(&plugin);
    let manifest = home.path("run.jsonl");
    program(&config().without_disk_cache().manifest(&manifest).build().unwrap()).unwrap();
    let [plugin, manifest] = [&plugin, &manifest].map(|path| path.to_str().unwrap().to_owned());
    let line =
        ["warm", &manifest, "--device", &plugin, "--target", "v5 lite", "--target-option", "platform=tpu"];
    let client = ["--client-option", "platform=tpu", "--client-option", "kind=v5 lite"];
    let line = [&line[..], &client].concat();
    home.cache(&line).ends_with(0).mentions(&["2 regions: 2 compiled"]);
    assert_eq!(home.json(&line)["present"], 2);
    let there = config().client_option("platform", "tpu").client_option("kind", "v5 lite");
    program(&there.disk_cache(home.place()).cache_only(true).build().unwrap()).unwrap();
    // XLA's CPU plugin compiles for no other target.
    if let Some(manifest) = self::manifest(home.0.path()) {
        home.cache(&["warm", &manifest, "--target", "cpu"]).ends_with(1).mentions(&["cannot compile for"]);
    }
}

#[test]
fn what_is_warmed_is_listed_verified_explained_and_runs() {
    let home = Home::new();
    let Some(manifest) = manifest(home.0.path()) else { return };
    let first = home.json(&["warm", &manifest, "--jobs", "1"]);
    assert_eq!((&first["regions"], &first["compiled"], &first["present"]), (&2.into(), &2.into(), &0.into()));
    let second = home.json(&["warm", &manifest]);
    assert_eq!((&second["compiled"], &second["present"]), (&0.into(), &2.into()), "{second}");
    home.cache(&["warm", &manifest])
        .ends_with(0)
        .mentions(&["2 regions: 0 compiled", "2 already stored, 0 failed"]);
    assert_eq!(runs(&home).unwrap().len(), 6);

    let listed = home.json(&["ls"]);
    let entries = listed["entries"].as_array().unwrap();
    let mut ops: Vec<u64> = entries.iter().map(|entry| entry["ops"].as_u64().unwrap()).collect();
    ops.sort_unstable();
    assert_eq!(ops, [2, 3]);
    home.cache(&["ls"]).ends_with(0).mentions(&["KEY", "ENVIRONMENT"]);
    let stats = home.json(&["stats"]);
    assert_eq!(stats["kinds"]["executable"]["entries"], 2, "{stats}");
    assert_eq!((&stats["environments"][0]["entries"], &stats["orphans"]), (&2.into(), &0.into()), "{stats}");
    home.cache(&["stats"]).ends_with(0).mentions(&["platform cpu", "numerics fast"]);
    assert!(home.json(&["verify"])["damaged"].as_array().unwrap().is_empty());

    let three = entries.iter().find(|entry| entry["ops"] == 3).unwrap();
    for name in ["key", "name"] {
        let key = &three[name].as_str().unwrap()[..12];
        home.cache(&["explain", key, "--module"]).ends_with(0).mentions(&[
            "tanh(in0)",
            "multiply(%0, in0)",
            "%2: f32[3]",
            "platform: cpu",
            "stablehlo.tanh",
        ]);
        let document = home.json(&["explain", key]);
        assert_eq!(
            (&document[0]["outputs"][0], &document[0]["name"]),
            (&2.into(), &three["name"]),
            "{document}"
        );
    }
    home.cache(&["explain", "0123456789"]).ends_with(2).mentions(&["no entry"]);
    let plugin = support::plugin(support::config().without_disk_cache()).unwrap();
    let plugin = plugin.pjrt_device().unwrap().client().plugin().path().to_str().unwrap().to_owned();
    let key = three["key"].as_str().unwrap();
    home.cache(&["explain", key, "--device", &plugin])
        .ends_with(0)
        .mentions(&["the same as on this machine"]);
}

#[test]
fn damage_is_found_and_removed() {
    let Some(home) = warm() else { return };
    let executable = home.executable();
    let mut bytes = std::fs::read(&executable).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&executable, bytes).unwrap();
    let name = executable.file_name().unwrap().to_str().unwrap();
    home.cache(&["verify"]).ends_with(1).mentions(&[name, "was changed", "1 damaged"]);
    assert!(executable.exists());
    home.cache(&["export", home.path("b").to_str().unwrap(), &name[..16], "--key-file", "k"]).ends_with(2);
    home.cache(&["verify", "--remove"]).ends_with(1).mentions(&["removed 1 entry"]);
    assert!(!executable.exists());
    home.cache(&["verify"]).ends_with(0);
}

#[test]
fn prune_takes_what_it_is_told() {
    let Some(home) = warm() else { return };
    let before = home.entries();
    let environment = home.json(&["ls"])["entries"][0]["environment"].as_str().unwrap().to_owned();
    for line in [
        &["prune", "--all", "--dry-run"][..],
        &["prune", "--max-size", "0", "--dry-run"],
        &["prune", "--max-size", "1G"],
        &["prune", "--max-age", "1d"],
        &["prune", "--environment", &"0".repeat(64)],
        &["prune", "--quarantine"],
    ] {
        home.cache(line).ends_with(0);
        assert_eq!(home.entries(), before, "{line:?}");
    }
    let would = home.json(&["prune", "--max-size", "0", "--dry-run"]);
    assert_eq!(would["removed"].as_array().unwrap().len(), before.len());
    // The note about the plugin's file belongs to neither environment.
    let removed = home.json(&["prune", "--environment", &environment[..20]]);
    assert_eq!(removed["removed"].as_array().unwrap().len(), 3, "{removed}");
    assert_eq!(home.entries().len(), before.len() - 3);
    home.cache(&["prune", "--all"]).ends_with(0);
    assert!(home.entries().is_empty());
}

/// The least recently used entries are removed first.
#[test]
fn prune_leaves_the_latest() {
    let Some(home) = warm() else { return };
    let oldest = home.executable();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(86_400 * 40);
    std::fs::File::options().write(true).open(&oldest).unwrap().set_modified(long_ago).unwrap();
    let total: u64 = home.entries().iter().map(|entry| entry.metadata().unwrap().len()).sum();
    let would = home.json(&["prune", "--max-size", &(total - 1).to_string(), "--dry-run"]);
    let name = oldest.file_name().unwrap().to_str().unwrap();
    assert_eq!(would["removed"], Value::from(vec![name]));
    assert_eq!(home.json(&["prune", "--max-age", "30d"])["removed"], Value::from(vec![name]));
    assert!(!oldest.exists());
}

#[test]
fn a_bundle_carries_executables_to_another_cache() {
    let Some(home) = warm() else { return };
    let (bundle, key) = (home.path("step.bundle"), home.path("bundle.key"));
    let (bundle, key) = (bundle.to_str().unwrap(), key.to_str().unwrap());
    let exported = home.json(&["export", bundle, "--key-file", key]);
    assert_eq!((&exported["executables"], &exported["environments"]), (&2.into(), &1.into()), "{exported}");
    let one = home.executable();
    let one = &one.file_name().unwrap().to_str().unwrap()[..16];
    let part = home.path("part.bundle");
    let exported = home.json(&["export", part.to_str().unwrap(), one, "--key-file", key]);
    assert_eq!(exported["executables"], 1);
    home.cache(&["export", bundle, "0123456789", "--key-file", key]).ends_with(2);

    let other = Home::new();
    let taken = other.json(&["import", part.to_str().unwrap(), "--key-file", key]);
    assert_eq!((&taken["added"], &taken["present"]), (&1.into(), &0.into()), "{taken}");
    let before: Vec<_> = other.entries().iter().map(|entry| std::fs::read(entry).unwrap()).collect();
    let mut import = other.tool();
    import.args(["cache", "import", bundle, "--json"]).env("FUSELINE_CACHE_BUNDLE_KEY_FILE", key);
    let taken = Answer::of(import.output().unwrap()).ends_with(0).json();
    assert_eq!((&taken["added"], &taken["present"]), (&1.into(), &1.into()), "{taken}");
    let after: Vec<_> = other.entries().iter().map(|entry| std::fs::read(entry).unwrap()).collect();
    assert!(before.iter().all(|entry| after.contains(entry)), "an entry was written again");
    assert_eq!(runs(&other).unwrap(), runs(&home).unwrap());
    // The user's key is in neither file.
    let secret = std::fs::read(home.path("state/cache.key")).unwrap();
    let bytes = std::fs::read(bundle).unwrap();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret));
    assert_ne!(secret, std::fs::read(other.path("state/cache.key")).unwrap());
}

#[test]
fn of_a_bundle_that_is_wrong_nothing_is_imported() {
    let Some(home) = warm() else { return };
    let (bundle, key) = (home.path("step.bundle"), home.path("bundle.key"));
    let (bundle, key) = (bundle.to_str().unwrap(), key.to_str().unwrap());
    home.cache(&["export", bundle, "--key-file", key]).ends_with(0);
    let good = std::fs::read(bundle).unwrap();
    let other = Home::new();
    let refused = |bytes: &[u8], key: &str, words: &str| {
        std::fs::write(bundle, bytes).unwrap();
        other.cache(&["import", bundle, "--key-file", key]).ends_with(1).mentions(&[words]);
        assert!(other.entries().is_empty());
    };
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    refused(&changed(0), key, "not a bundle");
    refused(&changed(8), key, "");
    refused(&changed(12), key, "entry 1 of 3");
    refused(&changed(20), key, "entry 1 of 3: its header has another name");
    refused(&changed(good.len() / 2), key, "of 3: it");
    refused(&changed(good.len() - 1), key, "entry 3 of 3: it was changed, or written with another cache key");
    refused(&good[..good.len() - 1], key, "truncated");
    refused(&good[..5], key, "truncated");
    refused(&[&good[..], b"x"].concat(), key, "1 bytes follow");
    // An empty entry, too.
    let none = [&good[..8], &[0; 4]].concat();
    refused(&[&none[..], b"x"].concat(), key, "1 bytes follow");
    refused(&[&none[..], &good[12..]].concat(), key, "bytes follow");
    // A length that the entry does not have is not read: here it is the length of a sparse file.
    let mut long = good.clone();
    long[12..20].copy_from_slice(&(512u64 << 20).to_le_bytes());
    std::fs::write(bundle, &long).unwrap();
    std::fs::OpenOptions::new().write(true).open(bundle).unwrap().set_len(1 << 30).unwrap();
    let import = |cache: &Home| cache.cache(&["import", bundle, "--key-file", key]).ends_with(1);
    import(&other).mentions(&["entry 1 of 3: its length differs"]);
    long[12 + 8 + 32..][..176].fill(0);
    std::fs::write(bundle, &long).unwrap();
    std::fs::OpenOptions::new().write(true).open(bundle).unwrap().set_len(1 << 30).unwrap();
    import(&other).mentions(&["entry 1 of 3: it is not a cache entry"]);
    // A path that is not a regular file does not block.
    std::fs::remove_file(bundle).unwrap();
    pipe(Path::new(bundle));
    import(&other).mentions(&["not a regular file"]);
    std::fs::remove_file(bundle).unwrap();
    // More data than the limit.
    std::fs::write(bundle, &good).unwrap();
    let mut small = other.tool();
    small.args(["cache", "import", bundle, "--key-file", key]).env("FUSELINE_CACHE_MAX_BYTES", "100");
    Answer::of(small.output().unwrap()).ends_with(1).mentions(&["the size limit of the cache, 100 bytes"]);
    let another = home.path("another.key");
    std::fs::copy(home.path("state/cache.key"), &another).unwrap();
    refused(&good, another.to_str().unwrap(), "the key is the one that the bundle was exported with");
    // A key that others may read is rejected.
    std::fs::set_permissions(key, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    refused(&good, key, "chmod go=");
}

fn pipe(path: &Path) {
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

/// Only the bundle is written: neither files of similar names nor the targets of links.
#[test]
fn exporting_touches_nothing_else() {
    let Some(home) = warm() else { return };
    let folder = home.path("out");
    std::fs::create_dir(&folder).unwrap();
    let (bundle, partial, other) = (folder.join("x"), folder.join("x.partial"), folder.join("other"));
    std::fs::write(&other, "mine").unwrap();
    std::os::unix::fs::symlink(&other, &partial).unwrap();
    // An export replaces the file instead of writing through it.
    std::os::unix::fs::symlink(&other, &bundle).unwrap();
    let key = home.path("bundle.key");
    let line = ["export", bundle.to_str().unwrap(), "--key-file", key.to_str().unwrap()];
    home.cache(&line).ends_with(0);
    assert_eq!(std::fs::read(&other).unwrap(), b"mine");
    assert!(partial.is_symlink() && !bundle.is_symlink());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3, "a partial one stayed");
    home.cache(&["import", bundle.to_str().unwrap(), "--key-file", key.to_str().unwrap()]).ends_with(0);
}

/// Export writes no bundle or key into a folder behind another user's link.
#[test]
fn exporting_follows_no_link_of_others() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: no root: the owner of a link is changed");
        return;
    }
    let Some(home) = warm() else { return };
    let (open, other) = (home.path("open"), home.path("other"));
    std::fs::create_dir(&open).unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let link = open.join("link");
    std::os::unix::fs::symlink(&other, &link).unwrap();
    let (within, own) = (link.join("x"), home.path("own"));
    for is_somebody_elses in [true, false] {
        let owner = if is_somebody_elses { 65534 } else { 0 };
        std::os::unix::fs::lchown(&link, Some(owner), None).unwrap();
        for (bundle, key) in [(&within, &own), (&own, &within)] {
            let line = ["export", bundle.to_str().unwrap(), "--key-file", key.to_str().unwrap()];
            let answer = home.cache(&line);
            if is_somebody_elses {
                answer.ends_with(1).mentions(&["it is not followed"]);
                assert_eq!(std::fs::read_dir(&other).unwrap().count(), 0);
            } else {
                answer.ends_with(0);
                std::fs::remove_file(&within).unwrap();
            }
            drop(std::fs::remove_file(&own));
        }
    }
}

/// A file size limit (`ulimit -f`) acts like a full disk: the tool reports an error and leaves no
/// partial file.
#[test]
fn a_limit_of_file_sizes_is_told() {
    let Some(home) = warm() else { return };
    let within = |bytes: u64, arguments: &[&str]| {
        let mut tool = Command::new("prlimit");
        tool.arg(format!("--fsize={bytes}")).arg(env!("CARGO_BIN_EXE_fuseline")).args(arguments);
        let own = home.tool();
        tool.envs(own.get_envs().filter_map(|(name, value)| Some((name, value?))));
        tool.env_remove("FUSELINE_CACHE").stdin(Stdio::null());
        tool.output().ok().map(Answer::of)
    };
    let (bundle, key) = (home.path("b"), home.path("k"));
    let (bundle, key) = (bundle.to_str().unwrap(), key.to_str().unwrap());
    let Some(answer) = within(100, &["cache", "export", bundle, "--key-file", key]) else {
        return println!("skipped: no prlimit");
    };
    answer.ends_with(1).mentions(&["File too large"]);
    let left = |name: &str| {
        std::fs::read_dir(home.0.path())
            .unwrap()
            .any(|file| file.unwrap().file_name().to_str().unwrap().starts_with(name))
    };
    assert!(!left("b"), "a part of a bundle");
    std::fs::remove_file(key).unwrap();
    within(31, &["cache", "export", bundle, "--key-file", key])
        .unwrap()
        .ends_with(1)
        .mentions(&["File too large"]);
    assert!(!left("k"), "a part of a key");
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/programs/elementwise_chain.json");
    let page = home.path("page.html");
    let line = ["run", program, "--timeline", page.to_str().unwrap()];
    within(500, &line).unwrap().ends_with(1).mentions(&["File too large"]);
    assert!(!page.exists());
}

/// Manifests that are not regular files do not block, and an endless line is not read to its end.
#[test]
fn manifests_are_files_of_bounded_length() {
    let home = Home::new();
    let at = |name: &str| home.path(name).into_os_string().into_string().unwrap();
    pipe(&home.path("pipe"));
    home.cache(&["warm", &at("pipe")]).ends_with(1).mentions(&["not a regular file"]);
    home.cache(&["warm", "/dev/zero"]).ends_with(1).mentions(&["not a regular file"]);
    std::fs::File::create(home.path("hole")).and_then(|file| file.set_len(1 << 30)).unwrap();
    home.cache(&["warm", &at("hole")]).ends_with(1).mentions(&["hole:1: it is not a manifest"]);
    std::fs::File::create(home.path("hole")).and_then(|file| file.set_len(1 << 40)).unwrap();
    home.cache(&["warm", &at("hole")]).ends_with(1).mentions(&["at most 1073741824 bytes"]);
    // They are not written to either.
    let engine = support::config().without_disk_cache().manifest(home.path("pipe")).build_reference();
    assert!(engine.unwrap_err().to_string().contains("cannot be opened"));
}

/// The variable, for programs that do not use the tool.
#[test]
fn the_tool_runs_only_what_is_there() {
    let home = Home::new();
    if support::plugin(support::config().without_disk_cache()).is_none() {
        return;
    }
    let program =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples/programs/elementwise_chain.json");
    let run = |only: &str| {
        let mut tool = home.tool();
        tool.arg("run").arg(&program).arg("--json").env("FUSELINE_CACHE", only);
        Answer::of(tool.output().unwrap())
    };
    run("only").ends_with(1).mentions(&["not in the disk cache", "has no executables"]);
    run("on").ends_with(0);
    let document = run("only").ends_with(0).json();
    assert_eq!(document["counters"]["compiles"], 0, "{document}");
    assert!(document["counters"]["loads"].as_u64() >= Some(1), "{document}");
    run("off").ends_with(0);
}

#[test]
fn a_second_process_compiles_nothing_of_what_a_first_one_did() {
    let home = Home::new();
    let bench = |options: &[&str]| {
        let mut command = home.tool();
        // A folder that others use is neither filled nor used.
        command.args(["bench", "--restart", "--only", "mlp/64", "--time", "0.001"]).args(options);
        Answer::of(command.output().expect("the tool starts"))
    };
    bench(&["--device", "reference"]).ends_with(2).mentions(&["compiles nothing"]);
    if support::plugin(support::config()).is_none() {
        return;
    }
    let said = bench(&["--json", "--compile-first"]).ends_with(0).json();
    let program = &said["programs"][0];
    assert_eq!(program["name"], "mlp/64-128-10");
    assert!(program["cold"]["compiles"].as_u64() > Some(0), "{said}");
    assert_eq!(program["warm"]["compiles"], 0, "{said}");
    assert!(said["device"]["platform"].is_string(), "{said}");
    assert!(!home.path("cache").exists());
}

#[test]
fn a_cache_that_cannot_be_used_is_told_by_who_measures_with_it() {
    let home = Home::new();
    std::fs::create_dir(home.path("state")).unwrap();
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(home.path("state"), open).unwrap();
    if support::plugin(support::config()).is_none() {
        return;
    }
    let mut command = home.tool();
    command.args(["bench", "--only", "mlp/64", "--mode", "fused", "--time", "0.001"]);
    Answer::of(command.output().unwrap()).ends_with(0).mentions(&["the disk cache is off", "go-w"]);
}
