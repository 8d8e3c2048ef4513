//! A program that runs ahead of its device.

use super::*;

/// A program that runs far ahead of the device waits when there is no more room, and the wait is
/// counted.
#[test]
fn recording_that_runs_ahead_waits() {
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    let config = support::config().replay(false).inject_faults(move |point| {
        if let FaultPoint::Execute { .. } = point {
            let _ = gate.lock().unwrap().recv();
        }
        None
    });
    let engine = config.build_reference().unwrap();
    let x = vector(&engine, &[1.0, 2.0]);
    let recorder = {
        let x = x.clone();
        std::thread::spawn(move || (0..400_000).fold(x, |x, _| x.neg().unwrap()))
    };
    let counters = || engine.counters();
    while counters().stalls == 0 && !recorder.is_finished() {
        // The wait is counted when it is over, so let one execution after the other finish.
        open.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(open);
    let last = recorder.join().unwrap();
    assert_eq!(last.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    let counters = counters();
    assert!(counters.stalls > 0, "nothing waited");
    assert!(Duration::ZERO < counters.longest_stall && counters.longest_stall <= counters.stall_time);
}
