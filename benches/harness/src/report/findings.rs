//! Conclusions from the results: means over the cases, and reasons for missing figures.

use crate::results::{CaseResult, Contender, Ratio, Report, Run, Times};

/// The contender that the others are compared with.
pub(super) const FUSED: &str = "fuseline-fused";

/// The comparisons of the headline, with names for reports without the contender.
const HEADLINE: [(&str, &str); 10] = [
    ("jax", "jax.jit"),
    ("jax-0.10", "jax.jit 0.10"),
    ("jax-eager", "JAX eager"),
    ("torch-compile", "torch.compile"),
    ("torch", "PyTorch eager"),
    ("torch-xla", "PyTorch/XLA"),
    ("numpy", "NumPy"),
    ("fuseline-strict", "Fuseline Strict"),
    ("fuseline-debug", "Fuseline Debug"),
    ("pjrt", "PJRT alone"),
];

/// Fuseline Fused over one contender, over the cases.
#[derive(Debug)]
pub(super) struct Headline {
    pub(super) id: &'static str,
    pub(super) name: String,
    /// Why the contender is missing, if it is.
    pub(super) missing: Option<String>,
    /// The geometric mean, the minimum and the maximum of the ratios that are not noisy; `None` if
    /// there are none.
    pub(super) mean: Option<Mean>,
    /// The number of noisy ratios, which do not count.
    pub(super) noisy: usize,
}

/// A geometric mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mean {
    pub(super) mean: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) cases: usize,
}

impl Mean {
    pub(super) fn of(ratios: &[f64]) -> Option<Self> {
        let cases = ratios.len();
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / cases as f64).exp();
        let low = ratios.iter().copied().reduce(f64::min)?;
        let high = ratios.iter().copied().reduce(f64::max)?;
        Some(Self { mean, low, high, cases })
    }
}

/// The means of the headline, in display order.
pub(super) fn headlines(report: &Report) -> Vec<Headline> {
    HEADLINE
        .iter()
        .map(|&(id, name)| {
            let contender = report.contenders.iter().find(|contender| contender.id == id);
            let ratios: Vec<&Ratio> = report.cases.iter().filter_map(|case| ratio(case, id)).collect();
            let clear: Vec<f64> =
                ratios.iter().filter(|ratio| !ratio.noisy).map(|ratio| ratio.quartiles.median).collect();
            Headline {
                id,
                name: contender.map_or(name, |contender| &contender.name).to_owned(),
                missing: match contender {
                    Some(contender) => contender.missing.clone(),
                    None => Some("not among the contenders of this run".to_owned()),
                },
                mean: Mean::of(&clear),
                noisy: ratios.len() - clear.len(),
            }
        })
        .collect()
}

/// Fuseline Fused over the contender, if there is such a figure.
pub(super) fn ratio<'a>(case: &'a CaseResult, id: &str) -> Option<&'a Ratio> {
    case.ratios.iter().find(|ratio| {
        let median = ratio.quartiles.median;
        ratio.to == id && median.is_finite() && median > 0.0
    })
}

/// The times of the contender, if it was measured.
pub(super) fn times<'a>(case: &'a CaseResult, id: &str) -> Option<&'a Times> {
    match case.runs.get(id) {
        Some(Run::Measured(times)) => Some(times),
        _ => None,
    }
}

/// Why a figure is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The case has no version for the contender.
    LeftOut,
    Failed,
    /// The run did not reach it.
    NotRun,
}

impl Kind {
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::LeftOut => "left out",
            Self::Failed => "failed",
            Self::NotRun => "not measured",
        }
    }
}

/// Why a contender has no figure for a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Absence {
    pub(super) kind: Kind,
    pub(super) why: String,
}

/// `None` if the contender was measured, or is missing from the whole run.
pub(super) fn absence(report: &Report, case: &CaseResult, contender: &Contender) -> Option<Absence> {
    let (kind, why) = match case.runs.get(&contender.id) {
        Some(Run::Measured(_)) => return None,
        Some(Run::LeftOut(why)) => (Kind::LeftOut, why.clone()),
        Some(Run::Failed(why)) => (Kind::Failed, why.clone()),
        None if contender.missing.is_some() => return None,
        None if report.interrupted => (Kind::NotRun, "the run was interrupted before this case".to_owned()),
        None => (Kind::NotRun, "no result was recorded".to_owned()),
    };
    Some(Absence { kind, why })
}

/// An absence with all cases that it applies to.
#[derive(Debug)]
pub(super) struct Absences<'a> {
    pub(super) contender: &'a Contender,
    pub(super) absence: Absence,
    /// Positions in the report's list of cases.
    pub(super) cases: Vec<usize>,
}

/// All absences by contender, grouped by reason.
pub(super) fn absences(report: &Report) -> Vec<Absences<'_>> {
    let mut all: Vec<Absences<'_>> = Vec::new();
    for contender in &report.contenders {
        for (place, case) in report.cases.iter().enumerate() {
            let Some(absence) = absence(report, case, contender) else { continue };
            let same =
                |known: &&mut Absences<'_>| known.contender.id == contender.id && known.absence == absence;
            match all.iter_mut().find(same) {
                Some(known) => known.cases.push(place),
                None => all.push(Absences { contender, absence, cases: vec![place] }),
            }
        }
    }
    all
}

/// The display name of a contender.
pub(super) fn name<'a>(report: &'a Report, id: &'a str) -> &'a str {
    report.contenders.iter().find(|contender| contender.id == id).map_or(id, |contender| &contender.name)
}

/// The program and the sizes of a case: the parts of its name before and after the first `/`.
pub(super) fn parts(case: &str) -> (&str, &str) {
    case.split_once('/').unwrap_or((case, ""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_mean_is_geometric() {
        let mean = Mean::of(&[0.25, 4.0, 1.0]).unwrap();
        assert!((mean.mean - 1.0).abs() < 1e-12);
        assert_eq!((mean.low, mean.high, mean.cases), (0.25, 4.0, 3));
        assert_eq!(Mean::of(&[]), None);
    }

    #[test]
    fn noisy_ratios_are_counted_but_not_in_the_mean() {
        let report = sample::report();
        for headline in headlines(&report) {
            let of = |noisy: bool| {
                let all = report.cases.iter().filter_map(|case| ratio(case, headline.id));
                all.filter(|ratio| ratio.noisy == noisy).count()
            };
            assert_eq!(headline.noisy, of(true), "{}", headline.name);
            assert_eq!(headline.mean.map_or(0, |mean| mean.cases), of(false), "{}", headline.name);
        }
        assert!(headlines(&report).iter().any(|headline| headline.noisy > 0));
    }

    #[test]
    fn every_contender_that_is_there_has_times_or_a_reason() {
        let report = sample::report();
        let absences = absences(&report);
        for contender in report.contenders.iter().filter(|contender| contender.missing.is_none()) {
            for (place, case) in report.cases.iter().enumerate() {
                let told = absences
                    .iter()
                    .filter(|known| known.contender.id == contender.id && known.cases.contains(&place))
                    .count();
                assert_eq!(told, usize::from(times(case, &contender.id).is_none()));
            }
        }
        assert!(absences.iter().any(|known| known.absence.kind == Kind::Failed));
        assert!(absences.iter().any(|known| known.absence.why.contains("interrupted")));
    }
}
