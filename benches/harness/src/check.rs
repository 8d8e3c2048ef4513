//! Compares the results of contenders.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

/// Named results, all elements of each in order.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outputs(Vec<(String, Vec<f32>)>);

impl Outputs {
    /// Reads a worker's answer.
    pub(crate) fn read(answer: &Value) -> Result<Outputs, String> {
        let all = answer.as_array().filter(|all| !all.is_empty()).ok_or("the program has no outputs")?;
        let output = |output: &Value| {
            let name = output["name"].as_str().ok_or("an output without a name")?;
            let data = output["data"].as_str().ok_or("an output without data")?;
            let bytes = BASE64_STANDARD.decode(data).map_err(|error| error.to_string())?;
            let (numbers, rest) = bytes.as_chunks::<4>();
            if !rest.is_empty() || numbers.is_empty() {
                return Err(format!("{name} has {} bytes", bytes.len()));
            }
            Ok((name.to_owned(), numbers.iter().map(|&number| f32::from_le_bytes(number)).collect()))
        };
        let mut outputs = all.iter().map(output).collect::<Result<Vec<_>, String>>()?;
        outputs.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Outputs(outputs))
    }

    /// The largest difference, relative to 1 + the larger magnitude.
    ///
    /// # Errors
    /// If they have different forms, or differ by more than `tolerance`. The error describes the
    /// difference.
    pub(crate) fn deviation(&self, wanted: &Outputs, tolerance: f64) -> Result<f64, String> {
        let form = |outputs: &Outputs| -> Vec<(String, usize)> {
            outputs.0.iter().map(|(name, data)| (name.clone(), data.len())).collect()
        };
        if form(self) != form(wanted) {
            return Err(format!(
                "its outputs are {:?}, those of Fuseline are {:?}",
                form(self),
                form(wanted)
            ));
        }
        let mut worst = 0.0;
        for ((name, found), (_, wanted)) in self.0.iter().zip(&wanted.0) {
            for (place, (&found, &wanted)) in found.iter().zip(wanted).enumerate() {
                let (a, b) = (f64::from(found), f64::from(wanted));
                let off = (a - b).abs() / (1.0 + a.abs().max(b.abs()));
                // NaN exceeds any tolerance.
                if off.is_nan() || off > tolerance {
                    return Err(format!(
                        "element {place} of {name} is {found:e}, that of Fuseline is {wanted:e}"
                    ));
                }
                worst = f64::max(worst, off);
            }
        }
        Ok(worst)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn outputs(data: &[f32]) -> Outputs {
        let bytes: Vec<u8> = data.iter().flat_map(|number| number.to_le_bytes()).collect();
        Outputs::read(&json!([{"name": "y", "data": BASE64_STANDARD.encode(bytes)}]))
            .expect("they are well formed")
    }

    #[test]
    fn what_differs_is_said() {
        let wanted = outputs(&[1.0, -3.0]);
        assert_eq!(outputs(&[1.0, -3.0]).deviation(&wanted, 0.0), Ok(0.0));
        let off = outputs(&[1.0, -3.004]).deviation(&wanted, 1e-2).expect("it is close enough");
        assert!((off - 0.004 / 4.004).abs() < 1e-6, "{off}");
        let error = outputs(&[1.0, -3.004]).deviation(&wanted, 1e-4).expect_err("it is not");
        assert!(error.contains("element 1 of y"), "{error}");
        assert!(outputs(&[f32::NAN, -3.0]).deviation(&wanted, 1.0).is_err());
        assert!(outputs(&[1.0]).deviation(&wanted, 1.0).expect_err("too few").contains("outputs"));
        assert!(Outputs::read(&json!([])).is_err());
    }
}
