//! Durations for people.

use std::time::Duration;

/// `0.42 s`, `12.3 s`, `3 min 04 s`.
pub(crate) fn human(took: Duration) -> String {
    let seconds = took.as_secs_f64();
    if seconds < 10.0 {
        format!("{seconds:.2} s")
    } else if seconds < 100.0 {
        format!("{seconds:.1} s")
    } else {
        let whole = seconds.round() as u64;
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_well_at_every_size() {
        for (millis, text) in
            [(420, "0.42 s"), (12_345, "12.3 s"), (183_600, "3 min 04 s"), (100_000, "1 min 40 s")]
        {
            assert_eq!(human(Duration::from_millis(millis)), text);
        }
    }
}
