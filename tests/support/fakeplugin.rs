//! Loads the plugin of `tests/fakeplugin`, with its faults and counts. For its features see
//! `tests/fakeplugin/README.md`.
//!
//! Cargo builds it before any test of this package, since it is a dev-dependency, and puts it next
//! to the test programs. Plans and counts belong to the process. A
//! [`FakePlugin`] has exclusive access, so tests of one program run one after the other.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fuseline::EngineConfig;
use libloading::os::unix::{Library, Symbol};

/// A limit against hangs only.
const LIMIT: Duration = Duration::from_secs(60);

/// The plugin, reserved for one test.
pub(crate) struct FakePlugin {
    library: Library,
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// The path of the plugin that cargo has built.
pub(crate) fn path() -> PathBuf {
    let program = std::env::current_exe().expect("a test program has a path");
    let path = program.with_file_name(format!("{DLL_PREFIX}fuseline_fakeplugin{DLL_SUFFIX}"));
    assert!(path.exists(), "{} is missing: cargo builds it with the tests of this package", path.display());
    path
}

impl FakePlugin {
    /// Waits for exclusive access. Then there is no plan but the environment's, and all call counts
    /// are zero.
    pub(crate) fn alone() -> FakePlugin {
        FakePlugin::alone_at(path())
    }

    /// The same for a copy of the plugin, which has plans and counts of its own.
    pub(crate) fn alone_at(path: PathBuf) -> FakePlugin {
        static ALONE: Mutex<()> = Mutex::new(());
        // A failed test leaves no plan behind.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: it is this project's own library, and its initialization does nothing.
        let library = unsafe { Library::new(&path) }.expect("the library loads");
        let plugin = FakePlugin { library, path, _alone: alone };
        plugin.reset();
        plugin.table(&std::env::var("FUSELINE_FAKE_TABLE").unwrap_or_default());
        plugin.plan(&std::env::var("FUSELINE_FAKE_PLAN").unwrap_or_default());
        plugin.assert_clean();
        plugin
    }

    /// The tests' configuration, on the plugin. Unless the plugin says that it is a CPU, nothing is
    /// interpreted, padded or compiled twice.
    pub(crate) fn config(&self) -> EngineConfig {
        super::config().plugin(&self.path)
    }

    fn text_function<R>(&self, name: &str) -> Symbol<unsafe extern "C" fn(*const c_char) -> R> {
        // SAFETY: each function that is requested here takes a C string and has this result type.
        unsafe { self.library.get(name.as_bytes()) }.expect("the plugin exports it")
    }

    fn number(&self, name: &str) -> u64 {
        // SAFETY: each function that is requested here takes nothing and returns a number.
        let function = unsafe { self.library.get::<unsafe extern "C" fn() -> u64>(name.as_bytes()) };
        // SAFETY: as above.
        unsafe { function.expect("the plugin exports it")() }
    }

    fn count(&self, name: &str, of: &str) -> u64 {
        let of = CString::new(of).expect("a name");
        // SAFETY: the function takes a C string and returns a number.
        unsafe { self.text_function::<u64>(name)(of.as_ptr()) }
    }

    #[track_caller]
    fn set(&self, name: &str, text: &str) {
        let text = CString::new(text).expect("a text");
        // SAFETY: the function takes a C string and returns one, or null.
        let wrong = unsafe { self.text_function::<*const c_char>(name)(text.as_ptr()) };
        // SAFETY: a non-null result is a C string that lives as long as the process.
        assert!(wrong.is_null(), "{}", unsafe { CStr::from_ptr(wrong) }.to_string_lossy());
    }

    /// Sets a fault plan; its rules count calls from now on.
    #[track_caller]
    pub(crate) fn plan(&self, text: &str) {
        self.set("fuseline_fake_set_plan", text);
    }

    /// Sets the function table of engines that are opened from now on.
    #[track_caller]
    pub(crate) fn table(&self, text: &str) {
        self.set("fuseline_fake_set_table", text);
    }

    /// Removes the plan and releases hanging threads.
    pub(crate) fn heal(&self) {
        self.plan("");
        self.release();
    }

    /// Removes the plan and resets the call counts.
    pub(crate) fn reset(&self) {
        // SAFETY: the function takes nothing and returns nothing.
        let reset = unsafe { self.library.get::<unsafe extern "C" fn()>(b"fuseline_fake_reset") };
        // SAFETY: as above.
        unsafe { reset.expect("the plugin exports it")() };
    }

    /// Releases hanging threads.
    pub(crate) fn release(&self) {
        // SAFETY: the function takes nothing and returns nothing.
        let release = unsafe { self.library.get::<unsafe extern "C" fn()>(b"fuseline_fake_release") };
        // SAFETY: as above.
        unsafe { release.expect("the plugin exports it")() };
    }

    /// The number of calls of a function.
    pub(crate) fn calls(&self, function: &str) -> u64 {
        self.count("fuseline_fake_calls", function)
    }

    /// How many of them triggered a planned fault.
    pub(crate) fn fired(&self, function: &str) -> u64 {
        self.count("fuseline_fake_fired", function)
    }

    /// The number of live objects of a kind.
    pub(crate) fn live(&self, kind: &str) -> u64 {
        self.count("fuseline_fake_live", kind)
    }

    /// The number of objects of a kind that were ever made.
    pub(crate) fn created(&self, kind: &str) -> u64 {
        self.count("fuseline_fake_created", kind)
    }

    /// The number of hanging threads.
    pub(crate) fn hanging(&self) -> u64 {
        self.number("fuseline_fake_hanging")
    }

    /// The number of the plugin's threads.
    pub(crate) fn threads(&self) -> u64 {
        self.number("fuseline_fake_threads")
    }

    /// Waits until no object lives and the plugin has no thread: the last references may be dropped
    /// on any thread.
    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        let kinds = [
            "client",
            "device",
            "memory",
            "executable",
            "loaded_executable",
            "buffer",
            "event",
            "error",
            "serialized",
        ];
        let is_clean = || self.live("all") == 0 && self.threads() == 0;
        wait_for(is_clean, || {
            let left = kinds.map(|kind| (kind, self.live(kind)));
            format!("{} threads, {left:?}", self.threads())
        });
    }
}

/// Waits for a condition. Reports the actual state if that takes too long.
#[track_caller]
pub(crate) fn wait_for(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{}", what());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The variable that names the part of a test for a child process.
const CHILD: &str = "FUSELINE_TEST_CHILD";

/// Runs a part of a test in a child process, with these environment variables. Returns its output
/// and status, which is 0 if the part returns. `test` is the test's name as the harness prints it,
/// `case` a name for the part. `None` in a child that was started for another part of the test: it
/// must continue to that part.
pub(crate) fn in_child(test: &str, case: &str, vars: &[(&str, &str)], part: impl FnOnce()) -> Option<Output> {
    let name = format!("{test} {case}");
    if let Some(child) = std::env::var_os(CHILD) {
        if *child == *name {
            part();
            std::process::exit(0);
        }
        return None;
    }
    let program = std::env::current_exe().expect("a test program has a path");
    let mut command = Command::new(program);
    command.args([test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, &name).envs(vars.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("the test program starts again");
    let id = child.id();
    let (send, ended) = mpsc::channel();
    let waiter = std::thread::spawn(move || send.send(child.wait_with_output()));
    let output = ended.recv_timeout(2 * LIMIT).unwrap_or_else(|_| {
        let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
        panic!("{name} in a process of its own takes for ever, {vars:?}");
    });
    waiter.join().expect("the waiter is well").expect("it is received");
    let output = output.expect("the process is waited for");
    let ran = String::from_utf8_lossy(&output.stdout).contains("running 1 test");
    assert!(ran, "{test} is not the name of a test: {output:?}");
    Some(output)
}
