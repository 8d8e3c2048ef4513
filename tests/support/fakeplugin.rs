//! The plugin of `tests/fakeplugin`, loaded: its faults, its counts. `tests/fakeplugin/README.md`
//! says what it can do.
//!
//! Cargo builds it before any test of this package, since the package names it among its
//! dev-dependencies, and puts it beside the test programs. Plans and counts are of the process: a
//! [`FakePlugin`] has it to itself, so tests of one program come one after the other.

use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use fuseline::EngineConfig;
use libloading::os::unix::{Library, Symbol};

/// Against hangs only.
const LIMIT: Duration = Duration::from_secs(60);

/// The plugin, for one test.
pub(crate) struct FakePlugin {
    library: Library,
    path: PathBuf,
    _alone: MutexGuard<'static, ()>,
}

/// Where cargo has put the plugin.
pub(crate) fn path() -> PathBuf {
    let program = std::env::current_exe().expect("a test program has a path");
    let path = program.with_file_name(format!("{DLL_PREFIX}fuseline_fakeplugin{DLL_SUFFIX}"));
    assert!(path.exists(), "{} is missing: cargo builds it with the tests of this package", path.display());
    path
}

impl FakePlugin {
    /// Waits until no other test of this program has it; nothing is planned but what the
    /// environment says, and nothing was called.
    pub(crate) fn alone() -> FakePlugin {
        static ALONE: Mutex<()> = Mutex::new(());
        // A test that failed leaves no plan behind.
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path();
        // SAFETY: it is this project's own library, and its initialisation does nothing.
        let library = unsafe { Library::new(&path) }.expect("the library loads");
        let plugin = FakePlugin { library, path, _alone: alone };
        plugin.reset();
        plugin.table(&std::env::var("FUSELINE_FAKE_TABLE").unwrap_or_default());
        plugin.plan(&std::env::var("FUSELINE_FAKE_PLAN").unwrap_or_default());
        plugin.assert_clean();
        plugin
    }

    /// Every region compiled when it first comes, on the plugin.
    pub(crate) fn config(&self) -> EngineConfig {
        super::config().plugin(&self.path)
    }

    fn text_function<R>(&self, name: &str) -> Symbol<unsafe extern "C" fn(*const c_char) -> R> {
        // SAFETY: each function that is asked for so takes a C string and returns what is said.
        unsafe { self.library.get(name.as_bytes()) }.expect("the plugin exports it")
    }

    fn number(&self, name: &str) -> u64 {
        // SAFETY: each function that is asked for so takes nothing and returns a number.
        let function = unsafe { self.library.get::<unsafe extern "C" fn() -> u64>(name.as_bytes()) };
        // SAFETY: for the same reason.
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
        // SAFETY: what is not null is a C string that stays.
        assert!(wrong.is_null(), "{}", unsafe { CStr::from_ptr(wrong) }.to_string_lossy());
    }

    /// Sets a plan of faults; its rules count calls from now on.
    #[track_caller]
    pub(crate) fn plan(&self, text: &str) {
        self.set("fuseline_fake_set_plan", text);
    }

    /// Sets the function table of engines that are made from now on.
    #[track_caller]
    pub(crate) fn table(&self, text: &str) {
        self.set("fuseline_fake_set_table", text);
    }

    /// Nothing is planned any more, and nobody hangs.
    pub(crate) fn heal(&self) {
        self.plan("");
        self.release();
    }

    /// No plan, and calls are counted from zero.
    pub(crate) fn reset(&self) {
        // SAFETY: the function takes nothing and returns nothing.
        let reset = unsafe { self.library.get::<unsafe extern "C" fn()>(b"fuseline_fake_reset") };
        // SAFETY: for the same reason.
        unsafe { reset.expect("the plugin exports it")() };
    }

    /// Lets everybody go on who hangs.
    pub(crate) fn release(&self) {
        // SAFETY: the function takes nothing and returns nothing.
        let release = unsafe { self.library.get::<unsafe extern "C" fn()>(b"fuseline_fake_release") };
        // SAFETY: for the same reason.
        unsafe { release.expect("the plugin exports it")() };
    }

    /// Calls of a function.
    pub(crate) fn calls(&self, function: &str) -> u64 {
        self.count("fuseline_fake_calls", function)
    }

    /// Those at which something was planned.
    pub(crate) fn fired(&self, function: &str) -> u64 {
        self.count("fuseline_fake_fired", function)
    }

    /// Objects of a kind that live.
    pub(crate) fn live(&self, kind: &str) -> u64 {
        self.count("fuseline_fake_live", kind)
    }

    /// Objects of a kind that were ever made.
    pub(crate) fn created(&self, kind: &str) -> u64 {
        self.count("fuseline_fake_created", kind)
    }

    /// Threads that hang.
    pub(crate) fn hanging(&self) -> u64 {
        self.number("fuseline_fake_hanging")
    }

    /// Threads of the plugin's.
    pub(crate) fn threads(&self) -> u64 {
        self.number("fuseline_fake_threads")
    }

    /// Waits until no object lives and the plugin has no thread: what is dropped last may be
    /// dropped on any thread.
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

/// Waits until something holds; says what is instead if that takes for ever.
#[track_caller]
pub(crate) fn wait_for(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < LIMIT, "{}", what());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Names the part of a test that a process is to run.
const CHILD: &str = "FUSELINE_TEST_CHILD";

/// Runs a part of a test in a process of its own, with variables of the environment, and tells how
/// that ended: with status 0 if the part returns. `test` is the test's name as the harness prints
/// it, `case` a name for the part. `None` in a process that was started for another part of the
/// test: it has to go on to that.
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
