//! A logarithmic axis: positions of values, and ticks.

/// Maps a range of values to a range of a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Log {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Log {
    /// An axis that contains all these values and `least`, with some margin. Values without a
    /// logarithm are ignored.
    pub(super) fn around(values: impl Iterator<Item = f64>, least: (f64, f64), air: f64) -> Self {
        let (low, high) = values
            .filter(|value| value.is_finite() && *value > 0.0)
            .fold(least, |(low, high), value| (low.min(value), high.max(value)));
        Self { low: low / air, high: high * air, from: 0.0, to: 1.0 }
    }

    /// Places the axis in this part of the picture. `from` is the position of the low end and may
    /// be the larger one.
    pub(super) fn along(self, from: f64, to: f64) -> Self {
        Self { from, to, ..self }
    }

    /// The position of a value. Values beyond an end are at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln();
        self.from + (self.to - self.from) * part.clamp(0.0, 1.0)
    }

    /// Round values on the axis: at most `most` and, if there is room, at least three.
    pub(super) fn ticks(&self, most: usize) -> Vec<f64> {
        let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
        let choose = |digits: &[f64], every: i32| -> Vec<f64> {
            decades
                .clone()
                .filter(|power| power.rem_euclid(every) == 0)
                .flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)))
                .filter(|tick| (self.low..=self.high).contains(tick))
                .collect()
        };
        let mut finest = choose(&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0], 1);
        for (digits, every) in [
            (&[1.0, 2.0, 3.0, 5.0][..], 1),
            (&[1.0, 2.0, 5.0], 1),
            (&[1.0, 3.0], 1),
            (&[1.0], 1),
            (&[1.0], 2),
            (&[1.0], 3),
            (&[1.0], 6),
        ] {
            if finest.len() <= most {
                break;
            }
            finest = choose(digits, every);
        }
        finest.truncate(most);
        finest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_in_place_and_ticks_are_round() {
        let axis = Log::around([0.1, 1000.0, f64::NAN, 0.0].into_iter(), (1.0, 1.0), 1.0).along(0.0, 400.0);
        assert!((axis.at(1.0) - 100.0).abs() < 1e-9);
        assert_eq!(axis.at(1e9), 400.0);
        assert_eq!(axis.at(-1.0), 0.0);
        assert_eq!(axis.ticks(6), [0.1, 1.0, 10.0, 100.0, 1000.0]);
    }

    #[test]
    fn a_narrow_axis_has_ticks_too() {
        let axis = Log::around([0.9, 1.2].into_iter(), (0.5, 2.0), 1.1);
        let ticks = axis.ticks(8);
        assert!(ticks.len() >= 3 && ticks.len() <= 8, "{ticks:?}");
        assert!(ticks.contains(&1.0));
    }
}
