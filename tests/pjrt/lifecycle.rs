//! The PJRT layer on the real plugin: lifetimes, the threads that end them, and leaks.
#![allow(
    clippy::disallowed_types,
    clippy::print_stderr,
    reason = "tests run under no model checker, and say what they found"
)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use fuseline::pjrt::{
    AlignedBytes, Buffer, Client, Executable, ExecuteOptions, HostData, Plugin, bytes_of, counters,
};

use crate::fixtures::*;

const WITH_EVENT: ExecuteOptions<'_> = ExecuteOptions {
    non_donatable: &[],
    launch_id: 0,
    call_location: None,
    device: None,
    want_completion_event: true,
};

/// A matrix and a program that is still running when `execute` returns.
fn busy(client: &Client) -> (Executable, Buffer) {
    let n = 256;
    let executable = slow(client, n, 40);
    let input = upload(client, &[n as u64, n as u64], &vec![0.001f32; n * n]);
    drop(executable.execute(&[&input], &WITH_EVENT).expect("runs").done.expect("asked for").wait());
    (executable, input)
}

#[test]
fn the_same_file_is_the_same_plugin_by_every_path() {
    let Some(plugin) = plugin() else { return };
    let path = plugin.path();
    assert_eq!(Plugin::open(path).expect("opens"), plugin);
    let dir = TempDir::new("open");
    let soft = dir.path().join("soft.so");
    std::os::unix::fs::symlink(path, &soft).expect("a link");
    assert_eq!(Plugin::open(&soft).expect("opens"), plugin, "by a symbolic link");
    let hard = dir.path().join("hard.so");
    // Link to the file itself: set-up provides a relative symbolic link.
    match std::fs::hard_link(path.canonicalize().expect("a path"), &hard) {
        Ok(()) => assert_eq!(Plugin::open(&hard).expect("opens"), plugin, "by a hard link"),
        Err(error) => eprintln!("not checked: a hard link ({error})"),
    }
    let opened: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| Plugin::open(&soft).expect("opens"))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(opened.iter().all(|other| *other == plugin));
}

#[test]
fn a_callback_on_unfinished_work_runs_once_though_everything_is_dropped() {
    let Some(client) = client(1) else { return };
    let (executable, input) = busy(&client);
    let (send, receive) = mpsc::channel();
    let mut pending = 0;
    for _ in 0..20 {
        let event = executable.execute(&[&input], &WITH_EVENT).expect("runs").done.expect("asked for");
        pending += usize::from(!event.is_ready().expect("an answer"));
        let send = send.clone();
        event.on_ready(move |outcome| send.send(outcome).expect("the test waits"));
    }
    assert!(pending > 0, "nothing was unfinished: the test shows nothing");
    drop((executable, input, client, send));
    let outcomes: Vec<_> = receive.iter().collect();
    assert_eq!(outcomes, vec![Ok(()); 20]);
}

#[test]
fn the_last_handle_may_die_in_a_callback() {
    for round in 0..10 {
        let Some(client) = client(1) else { return };
        let (executable, input) = busy(&client);
        let run = executable.execute(&[&input], &WITH_EVENT).expect("runs");
        let event = run.done.expect("asked for");
        let (send, receive) = mpsc::channel();
        let everything = (executable, input, run.outputs, client);
        event.on_ready(move |outcome| {
            let name = std::thread::current().name().map(str::to_owned);
            drop(everything);
            send.send((outcome, name)).expect("the test waits");
        });
        drop(event);
        let (outcome, thread) = receive.recv_timeout(Duration::from_secs(60)).expect("called");
        outcome.expect("succeeds");
        if round == 0 {
            assert_ne!(
                thread.as_deref(),
                std::thread::current().name(),
                "it ran here: the test shows nothing"
            );
        }
    }
}

/// Counts its drops, and notes whether the buffer was still alive.
struct Owner {
    bytes: AlignedBytes,
    drops: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // A later use would see this.
        self.bytes.as_mut().fill(0xff);
        self.drops.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn owned_data_outlives_its_buffer_and_the_work_on_it() {
    let Some(client) = client(1) else { return };
    let (executable, input) = busy(&client);
    let n = 256usize;
    let data = vec![0.001f32; n * n];
    let expected =
        executable.execute(&[&input], &WITH_EVENT).expect("runs").outputs[0].to_host().expect("read");
    for round in 0..10 {
        let drops = Arc::new(AtomicUsize::new(0));
        let owner = Owner { bytes: AlignedBytes::copy_of(bytes_of(&data)), drops: Arc::clone(&drops) };
        let data = HostData::zero_copy(owner);
        let start = data.as_ptr();
        let device = &client.devices()[0];
        let buffer =
            client.buffer_from_owned(&ty::<f32>(&[n as u64, n as u64]), data, device).expect("a buffer");
        assert!(buffer.aliases(start).expect("an address"));
        assert_eq!(drops.load(Ordering::Relaxed), 0, "dropped with the buffer alive");
        let run = executable.execute(&[&buffer], &WITH_EVENT).expect("runs");
        // The buffer is dropped while the work continues. If the data were freed with it, the
        // result would be wrong.
        drop(buffer);
        let unfinished = !run.done.as_ref().expect("asked for").is_ready().expect("an answer");
        if round == 0 {
            assert!(unfinished, "nothing was unfinished: the test shows nothing");
        }
        assert_eq!(run.outputs[0].to_host().expect("read"), expected);
        let start = Instant::now();
        while drops.load(Ordering::Relaxed) == 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "never dropped");
            std::thread::yield_now();
        }
        assert_eq!(drops.load(Ordering::Relaxed), 1);
    }
}

#[test]
fn handles_die_in_any_order_on_any_thread() {
    let before = counters();
    for seed in 0..60 {
        let mut choices = Choices(seed);
        let Some(client) = client(1 + choices.below(2) as i64) else { return };
        let executable = add(&client, 1_024);
        let slow = slow(&client, 64, 10);
        let drops = Arc::new(AtomicUsize::new(0));
        let called = Arc::new(AtomicUsize::new(0));
        let (mut owners, mut callbacks) = (0, 0);
        let mut things: Vec<Box<dyn Send>> = Vec::new();
        for _ in 0..1 + choices.below(5) {
            let a = upload(&client, &[1_024], &[1.0f32; 1_024]);
            let m = upload(&client, &[64, 64], &[0.1f32; 4_096]);
            let run = executable.execute(&[&a, &a], &WITH_EVENT).expect("runs");
            let slow_run = slow.execute(&[&m], &WITH_EVENT).expect("runs");
            let event = slow_run.outputs[0].ready_event().expect("an event");
            callbacks += 1;
            let held = (client.clone(), called.clone());
            event.on_ready(move |_| {
                held.1.fetch_add(1, Ordering::Relaxed);
            });
            let bytes = AlignedBytes::copy_of(bytes_of(&[2.0f32; 1_024]));
            let owner = Owner { bytes, drops: Arc::clone(&drops) };
            owners += 1;
            let device = &client.devices()[0];
            let owned = client.buffer_from_owned(&ty::<f32>(&[1_024]), HostData::zero_copy(owner), device);
            let owned = owned.expect("a buffer");
            things.push(Box::new(executable.execute(&[&owned, &a], &WITH_EVENT).expect("runs")));
            things.push(Box::new(slow_run.outputs[0].to_host_async()));
            things.push(Box::new(owned));
            things.push(Box::new(slow_run));
            things.push(Box::new(event));
            things.push(Box::new(run));
            things.push(Box::new((a, m)));
        }
        things.push(Box::new((executable, slow)));
        things.push(Box::new(client.devices()));
        things.push(Box::new(client.memories()));
        things.push(Box::new(client));
        std::thread::scope(|scope| choices.drop_on_threads(scope, things));
        let start = Instant::now();
        while drops.load(Ordering::Relaxed) < owners || called.load(Ordering::Relaxed) < callbacks {
            assert!(start.elapsed() < Duration::from_secs(20), "seed {seed}: something never came");
            std::thread::yield_now();
        }
        assert_eq!(drops.load(Ordering::Relaxed), owners, "seed {seed}");
        assert_eq!(called.load(Ordering::Relaxed), callbacks, "seed {seed}");
    }
    assert_eq!(counters().destroy_errors, before.destroy_errors);
    assert_eq!(counters().leaks, before.leaks);
}

#[test]
fn handles_may_die_in_thread_locals_and_in_panics() {
    let Some(client) = client(1) else { return };
    thread_local! {
        static KEPT: std::cell::RefCell<Vec<Box<dyn std::any::Any>>> = const { std::cell::RefCell::new(Vec::new()) };
    }
    let executable = add(&client, 16);
    let input = upload(&client, &[16], &[1.0f32; 16]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let run = executable.execute(&[&input, &input], &WITH_EVENT).expect("runs");
            KEPT.with_borrow_mut(|kept| {
                kept.push(Box::new(run));
                kept.push(Box::new(client.clone()));
            });
        });
        let panicked = scope.spawn(|| {
            let _run = executable.execute(&[&input, &input], &WITH_EVENT).expect("runs");
            panic!("planned: handles die while a panic unwinds");
        });
        assert!(panicked.join().is_err());
    });
    // A handle that is never dropped keeps its client alive, and does no other harm.
    std::mem::forget(executable.execute(&[&input, &input], &WITH_EVENT).expect("runs"));
    drop((executable, input, client));
    assert_eq!(counters().destroy_errors, 0);
}

#[test]
fn dropping_does_not_wait_for_the_work() {
    let Some(client) = client(1) else { return };
    let n = 1_024;
    let executable = slow(&client, n, 6);
    let input = upload(&client, &[n as u64, n as u64], &vec![0.001f32; n * n]);
    let run = executable.execute(&[&input], &WITH_EVENT).expect("runs");
    let event = run.done.expect("asked for");
    let copy = run.outputs[0].to_host_async().expect("starts");
    let start = Instant::now();
    drop((copy, run.outputs, input, executable));
    let dropped = start.elapsed();
    assert!(!event.is_ready().expect("an answer"), "the work was over: the test shows nothing");
    event.wait().expect("succeeds");
    let worked = start.elapsed();
    assert!(dropped * 4 < worked, "dropping took {dropped:?} of {worked:?}");
}

/// The number of threads and the resident KiB of this process.
fn footprint() -> Option<(usize, usize)> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?.count();
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some((threads, line.trim().trim_end_matches("kB").trim().parse().ok()?))
}

/// Must be alone in its process, because threads of other tests would count: see the end of the
/// file.
fn a_hundred_clients() {
    let one = || {
        let client = client(2).expect("there is a plugin");
        let executable = add(&client, 16);
        let input = upload(&client, &[16], &[1.0f32; 16]);
        let run = executable.execute(&[&input, &input], &WITH_EVENT).expect("runs");
        assert_eq!(download::<f32>(&run.outputs[0]), [2.0; 16]);
    };
    for _ in 0..10 {
        one();
    }
    let Some((threads, rss)) = footprint() else { return eprintln!("not checked: no /proc") };
    for _ in 0..100 {
        one();
    }
    let (threads_after, rss_after) = footprint().expect("there was one");
    eprintln!("100 clients: threads {threads} -> {threads_after}, resident {rss} -> {rss_after} KiB");
    assert!(threads_after <= threads + 2, "{threads} threads became {threads_after}");
    assert!(rss_after < rss + 40 * 1_024, "{rss} KiB became {rss_after}");
    assert_eq!(counters(), Default::default());
}

#[test]
fn a_hundred_clients_come_and_go() {
    if plugin().is_none() {
        return;
    }
    if std::env::var_os("PJRT_LIFECYCLE_ALONE").is_some() {
        return a_hundred_clients();
    }
    let output = std::process::Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "lifecycle::a_hundred_clients_come_and_go", "--nocapture"])
        .env("PJRT_LIFECYCLE_ALONE", "1")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    if let Some(line) = text.lines().find(|line| line.starts_with("100 clients")) {
        eprintln!("{line}");
    }
}
